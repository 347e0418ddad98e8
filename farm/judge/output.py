"""One output of one cell through docs/judging.md order of checks; first hit wins, the worst input set is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

from farm.agent_protocol import OutputData
from farm.judge import reference as trust
from farm.judge.bands import SMALL_OUTPUT, limits_for
from farm.judge.checks import EXACT_KINDS, UNIT_KINDS, check_shape, check_values
from farm.judge.index_scores import index_source, sibling_scores
from farm.judge.infer import FLOATS, decoder_for, infer_kind
from farm.judge.kinds import kind_named
from farm.judge.look import Look, Seen, badness, facts_for, output_of
from farm.judge.pair import Decision, Pair, number
from farm.judge.reference import Hit, doubt
from farm.judge.verdict import OutputVerdict
from farm.metrics import EXACT_SNR_DB
from farm.metrics.decode import Array


class OutputJudge:
    """Judges output number `position` of the signature over all input sets and steps."""

    def __init__(self, seen: Seen, position: int) -> None:
        self.seen, self.position = seen, position
        self.notes: list[str] = []
        self.floor_db: float | None = None
        evidence = seen.evidence
        graph = evidence.case.graph
        info = next((t for t in seen.first.outputs if t.index == position), None)
        self.facts = facts_for(graph.outputs if graph else (), info.name if info else "", position)
        self.name = (info.name if info else "") or (self.facts.name if self.facts else f"out{position}")
        self.dtype = info.dtype if info else self.facts.dtype if self.facts else "uint8"
        self.target_dtype = next((t.dtype for t in seen.result.outputs if t.index == position), self.dtype)
        self.low_precision = seen.low_precision(self.dtype)
        self.decoder = decoder_for(self.dtype, self.facts)
        self.kind, self.kind_source = "values", "not judged"

    def verdict(self) -> OutputVerdict:
        looks = self._looks()
        self._check_early(looks)
        open_ = [look for look in looks if look.hit is None]
        references = [look.pair.ref for look in open_ if look.pair is not None]
        case = self.seen.evidence.case
        self.kind, self.kind_source = infer_kind(
            dtype=self.dtype,
            facts=self.facts,
            spec_kind=case.spec.kinds.get(self.name),
            references=references,
            decoder=self.decoder,
        )
        self._kind = kind_named(self.kind)
        self._nominal = limits_for(
            self.kind,
            low_precision=self.low_precision,
            output=self.name,
            overrides=(self.seen.evidence.bands, case.spec.bands),
        )
        limit = self._nominal.get("pass_max_abs", 0.0) if self.kind in UNIT_KINDS else 0.0
        if references and all(r.pair is None or r.pair.metrics.ref_max_abs <= limit for r in open_) and limit:
            self.notes.append(f"{self.name}: the reference never exceeds {number(limit)}: these inputs say little")
        for step in (self._check_values, self._measure, self._check_repeats):
            for look in open_:
                look.hit = look.hit or step(look)
        self._check_input_sets([look for look in open_ if look.hit is None])
        for look in open_:
            look.hit = look.hit or self._decide(look)
        return self._worst(self._without_vacuous(looks))

    # Checks 1 and 2: presence, shape, dtype; what can be said of the reference without its values.

    def _looks(self) -> list[Look]:
        sets = self.seen.evidence.case.input_sets
        targets = {(run.set, run.step): run for run in self.seen.result.runs}
        looks = []
        for run in self.seen.first.runs:
            ref = output_of(run, self.position)
            if ref is None:
                continue
            name = sets[run.set].name if run.set < len(sets) else str(run.set)
            label = f"{name} step {run.step}" if self._steps() else name
            tgt = output_of(targets.get((run.set, run.step)), self.position)
            looks.append(Look(key=(run.set, run.step), label=label, ref=ref, tgt=tgt))
        return looks

    def _steps(self) -> bool:
        return any(run.step for run in self.seen.first.runs)

    def _check_early(self, looks: list[Look]) -> None:
        second = {(r.set, r.step): r for r in self.seen.reference.second.runs} if self.seen.reference.second else {}
        for look in looks:
            look.hit = (
                self._check_shape(look)
                or trust.faulty_graph(self.facts)
                or trust.inexact_reduction(
                    self.facts, self.seen.reference, self.position, low_precision=self.low_precision
                )
                or trust.unstable(look.ref, output_of(second.get(look.key), self.position))
                or self._load_pair(look)
            )
            if look.hit is None and look.pair is not None:
                look.hit = trust.nonfinite(look.pair.metrics, self.seen.evidence.case.graph)

    def _check_shape(self, look: Look) -> Hit | None:
        return check_shape(look.ref, look.tgt, ref_dtype=self.dtype, tgt_dtype=self.target_dtype, label=look.label)

    def _load_pair(self, look: Look) -> Hit | None:
        assert look.tgt is not None  # _check_shape came first
        ref = self._load(look.ref, look.ref.sha256)
        if ref is None:
            return doubt("REFERENCE_MISSING", "the reference's bytes are no longer kept")
        tgt = ref if look.tgt.sha256 == look.ref.sha256 else self._load(look.tgt, look.tgt.sha256)
        if tgt is None or tgt.shape != ref.shape:
            return Hit(verdict="infra", reason="OUTPUT_NOT_KEPT", message="the output's bytes are no longer kept")
        look.pair = self._pair(ref, tgt)
        return None

    def _load(self, output: OutputData, sha256: str) -> Array | None:
        try:
            return self.seen.evidence.load(sha256, self.dtype, output.shape)
        except KeyError:
            return None

    def _pair(self, ref: Array, tgt: Array, scores: tuple[Array, Array] | None = None) -> Pair:
        return Pair(ref=ref, tgt=tgt, decoder=self.decoder, low_precision=self.low_precision, scores=scores)

    def _check_values(self, look: Look) -> Hit | None:
        assert look.pair is not None
        return check_values(
            look.pair,
            kind=self.kind,
            limits=self._nominal,
            min_norm=self.seen.evidence.limits.min_norm,
            fp16_float=self.low_precision and self.dtype in FLOATS,
        )

    # Check 10: the kind's own figures, within bands loosened by the noise floor.

    def _measure(self, look: Look) -> Hit | None:
        assert look.pair is not None
        pair = look.pair
        if self.kind == "indices":
            pair = replace(
                pair,
                scores=sibling_scores(self.seen, self.facts, look),
                source=index_source(self.seen, self.facts, self.position, look),
            )
        look.values = self._kind.measure(pair)
        look.limits = dict(self._nominal)
        return self._apply_floor(look)

    def _decide(self, look: Look) -> Hit | None:
        assert look.pair is not None
        decision = self._kind.decide(look.values, look.limits)
        look.decision = decision = self._apply_min_cosine(look.pair, decision, look.limits)
        if decision.band != "fail":
            return None
        graph = self.seen.evidence.case.graph
        excuse = trust.excused_miss(
            self.facts,
            graph,
            low_precision=self.low_precision,
            reference=self.seen.reference,
            position=self.position,
            snr_db=look.pair.metrics.snr_db,
        )
        return excuse or Hit(
            verdict="fail", reason=decision.reason or "PRECISION_DEGRADATION", message=decision.message
        )

    def _apply_floor(self, look: Look) -> Hit | None:
        """Loosen limits to what two right CPU answers differ by; a floor in the fail band leaves no reference."""
        floor = self._floor_values(look)
        if floor is None:
            return None
        exact = look.tgt is not None and look.tgt.sha256 == look.ref.sha256
        verdict = self._kind.decide(floor, self._nominal)
        if verdict.band == "fail" and not exact:
            return doubt(
                "REFERENCE_UNSTABLE",
                f"the CPU's two kernel sets disagree by more than may be allowed ({verdict.message})",
            )
        if verdict.band == "fail":
            self.notes.append(f"{self.name}: equals the reference bit for bit, but the CPU's two kernel sets disagree")
        look.limits = self._kind.loosen(self._nominal, floor)
        return None

    def _floor_values(self, look: Look) -> dict[str, float] | None:
        floor = self.seen.reference.floor
        if floor is None or not floor.ok or look.pair is None:
            return None
        run = next((r for r in floor.runs if (r.set, r.step) == look.key), None)
        output = output_of(run, self.position)
        if output is None or output.shape != look.ref.shape:
            return None
        other = look.pair.ref if output.sha256 == look.ref.sha256 else self._load(output, output.sha256)
        if other is None or other.shape != look.pair.ref.shape:
            return None
        pair = self._pair(look.pair.ref, other)
        source = index_source(self.seen, self.facts, self.position, look) if self.kind == "indices" else None
        if source is not None:
            pair = replace(pair, source=(source[0], None, source[2]))
        snr = EXACT_SNR_DB if other is look.pair.ref else pair.metrics.snr_db
        if snr is not None and math.isfinite(snr):
            self.floor_db = min(snr, self.floor_db if self.floor_db is not None else snr)
        if other is not look.pair.ref and pair.metrics.new_nonfinite:
            return {"equal_share": 0.0}  # no figure a band could pass
        return self._kind.measure(pair)

    def _apply_min_cosine(self, pair: Pair, decision: Decision, limits: dict[str, float]) -> Decision:
        evidence = self.seen.evidence
        least = evidence.case.spec.min_cosine_similarity
        least = evidence.limits.min_cosine_similarity if least is None else least
        flushed = self.kind in UNIT_KINDS and pair.metrics.ref_max_abs <= self._nominal["pass_max_abs"]
        if least is None or self.kind in EXACT_KINDS or pair.ref.size < SMALL_OUTPUT or flushed:
            return decision
        limits["min_cosine_similarity"] = least
        cosine = pair.metrics.cosine
        if cosine is not None and cosine >= least:
            return decision
        said = f"cosine {number(cosine)} is below {number(least)}" if cosine is not None else "no cosine is defined"
        message = (
            f"{decision.message}; {said}; --min-cosine-similarity {math.floor((cosine or 0) * 1e4) / 1e4} would pass"
        )
        return Decision(band="fail", reason=decision.reason or "PRECISION_DEGRADATION", message=message)

    # Checks 8 and 9: repeats against each other, input sets against each other. They come before bands.

    def _check_input_sets(self, looks: list[Look]) -> None:
        for one, other in combinations([look for look in looks if look.pair is not None], 2):
            if one.key[1] != other.key[1] or one.pair is None or other.pair is None:
                continue
            if one.ref.sha256 == other.ref.sha256:
                if self.facts is None or (self.facts.depends_on_inputs and not self.facts.constant):
                    self.notes.append(f"{self.name}: inputs {one.label} and {other.label} do not exercise this output")
                continue
            same = one.tgt is not None and other.tgt is not None and one.tgt.sha256 == other.tgt.sha256
            if same and one.pair.ref.shape == other.pair.ref.shape and self._apart(one, other):
                hit = Hit(
                    verdict="fail",
                    reason="INPUT_INDEPENDENT",
                    message=f"is bit-equal for inputs {one.label} and {other.label}; the reference differs",
                )
                one.hit = other.hit = hit

    def _apart(self, one: Look, other: Look) -> bool:
        assert one.pair is not None
        assert other.pair is not None
        if self.kind == "indices" and all(
            self._kind.decide(look.values, look.limits).band != "fail" for look in (one, other)
        ):
            # The reference moved between near ties, and the target may well have stayed at one.
            return False
        between = self._kind.measure(self._pair(one.pair.ref, other.pair.ref))
        # The looser of both sets' limits: a difference within either's noise proves nothing.
        return all(self._kind.decide(between, look.limits or self._nominal).band != "pass" for look in (one, other))

    def _check_repeats(self, look: Look) -> Hit | None:
        assert look.tgt is not None
        assert look.pair is not None
        others = dict.fromkeys(sha for sha in look.tgt.repeat_sha256 if sha != look.tgt.sha256)
        if others and any(sha != look.ref.sha256 for sha in look.ref.repeat_sha256):
            # The CPU's own repeats differ, as a seeded random op's do: that the target's do proves nothing.
            return doubt("REFERENCE_UNSTABLE", "repeats within one CPU run differ, and so do the target's")
        for sha in others:
            repeat = self._load(look.tgt, sha)
            if repeat is None or repeat.shape != look.pair.tgt.shape:
                self.notes.append(f"{self.name}: a repeat differs, but its bytes are not kept")
                continue
            pair = self._pair(look.pair.tgt, repeat)
            m = pair.metrics
            values = self._kind.measure(pair)
            decision = self._kind.decide(values, look.limits or self._nominal)
            if decision.band != "pass" or m.new_nonfinite or m.nonfinite_differ:
                return Hit(
                    verdict="fail",
                    reason="NONDETERMINISTIC",
                    message=f"{len(others)} of {len(look.tgt.repeat_sha256)} repeats differ: {decision.message}",
                )
            look.values["repeat_max_abs"] = max(m.max_abs, look.values.get("repeat_max_abs", 0.0))
        return None

    # The worst input set is kept.

    def _without_vacuous(self, looks: list[Look]) -> list[Look]:
        """Leave out input sets that say nothing about this output where another one does."""
        idle = [look for look in looks if look.hit is not None and look.hit.reason == "REFERENCE_VACUOUS"]
        if not idle or len(idle) == len(looks):
            return looks
        self.notes += [
            f"{self.name}: input set {look.label} says nothing ({look.hit.message})" for look in idle if look.hit
        ]
        return [look for look in looks if look not in idle]

    def _worst(self, looks: list[Look]) -> OutputVerdict:
        if not looks:
            return self._verdict(None, doubt("REFERENCE_MISSING", "the reference lacks this output"))
        look = max(looks, key=badness)
        return self._verdict(look, look.hit)

    def _verdict(self, look: Look | None, hit: Hit | None) -> OutputVerdict:
        metrics: dict[str, float] = {}
        if look is not None and look.pair is not None:
            metrics = look.pair.metrics.numbers()
        if look is not None:
            metrics |= {name: value for name, value in look.values.items() if math.isfinite(value)}
        if self.floor_db is not None:
            metrics["floor_snr_db"] = self.floor_db
        decision = look.decision if look is not None else None
        return OutputVerdict(
            name=self.name,
            kind=self.kind,
            kind_source=self.kind_source,
            input_set=look.label if look is not None else "",
            verdict=hit.verdict if hit else decision.band if decision else "inconclusive",
            reasons=(hit.reason,) if hit else () if decision else ("REFERENCE_MISSING",),
            metrics=metrics,
            limits=look.limits if look is not None else {},
            message=hit.message if hit else decision.message if decision else "not judged",
        )
