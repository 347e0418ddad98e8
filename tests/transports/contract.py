"""What every transport must do. `test_transport_contract.py` runs all of it over every link of conftest.py's LINKS.

A link's far folder is looked at through the link itself, so the same facts are asked of this machine, of a host behind
a real sshd and of a phone behind a real adb server.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.errors import DeadlineExceeded, DeviceLost, InfraError, InvalidInput, NoSpace, TransferFailed
from farm.transports.base import Completed, Transport

ODD_WORDS = [
    "a b",
    "it's",
    '"q"',
    "$(id)",
    "`id`",
    "$HOME",
    ";",
    "&&",
    "*",
    "\\",
    "new\nline",
    "tab\t",
    "",
    "-n",
    "ä→😀",
    "!",
]
LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way to a device, under test. folder: exists there. tiny: a far folder of about 1 MiB, or None.

    merged: the link cannot keep stderr apart from stdout. fresh: makes another transport to the same device.
    """

    transport: Transport
    folder: str
    fresh: Callable[[], Transport]
    tiny: str | None = None
    merged: bool = False

    def sh(self, script: str, *words: str, timeout: float = LIMIT_S) -> Completed:
        """Run a script there and insist that it worked."""
        done = self.transport.run(["sh", "-c", script, "sh", *words], timeout)
        assert done.exit_status == 0, done
        return done

    def listing(self) -> list[str]:
        """Names in the far folder, hidden ones included."""
        return sorted(self.sh('cd "$1" && ls -A', self.folder).stdout.decode().split())


def alive(transport: Transport, mark: str) -> str:
    """Command lines over there that carry `mark`; empty if none does."""
    # The search must not find itself: the mark is put together there, after the list of processes was made.
    script = 'for p in /proc/[0-9]*; do tr "\\0" " " <"$p/cmdline" | grep "$1$2"; done 2>/dev/null; true'
    done = transport.run(["sh", "-c", script, "sh", mark[:4], mark[4:]], LIMIT_S)
    assert done.exit_status == 0
    return done.stdout.decode()


class TransportContract:
    """The facts. Subclass it in a test module where a `link` fixture exists."""

    def test_stdout_and_stderr_keep_binary_bytes(self, link: Link, tmp_path: Path) -> None:
        every = bytes(range(256)) * 3 + b"\r\n\n\r\x04\x1a"
        done = link.transport.run(["cat"], LIMIT_S, stdin=every)
        assert (done.exit_status, done.stdout, done.stderr) == (0, every, b"")
        done = link.transport.run(["sh", "-c", "cat >&2"], LIMIT_S, stdin=every)
        assert (done.stdout if link.merged else done.stderr) == every

    def test_argv_arrives_word_for_word(self, link: Link) -> None:
        done = link.transport.run(["sh", "-c", 'printf "%s\\0" "$@"', "sh", *ODD_WORDS], LIMIT_S)
        assert done.stdout.decode().split("\0")[:-1] == ODD_WORDS

    def test_environment_is_added_word_for_word(self, link: Link) -> None:
        env = {"FARM_A": "it's $HOME; `id`\n2", "FARM_B": ""}
        done = link.transport.run(["sh", "-c", 'printf "%s|%s" "$FARM_A" "${FARM_B-unset}"'], LIMIT_S, env=env)
        assert done.stdout.decode() == env["FARM_A"] + "|"

    def test_stdin_is_empty_when_none_is_given(self, link: Link) -> None:
        assert link.transport.run(["cat"], LIMIT_S).stdout == b""

    def test_large_stdin_arrives_whole(self, link: Link) -> None:
        data = os.urandom(1_500_000)
        done = link.transport.run(["sha256sum"], LIMIT_S, stdin=data)
        assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()

    def test_a_program_need_not_read_its_stdin(self, link: Link) -> None:
        assert link.transport.run(["true"], LIMIT_S, stdin=b"x" * 300_000).exit_status == 0

    @pytest.mark.parametrize("status", [0, 1, 2, 42, 127, 255])
    def test_exit_status_is_data(self, link: Link, status: int) -> None:
        assert link.transport.run(["sh", "-c", f"exit {status}"], LIMIT_S).exit_status == status

    @pytest.mark.parametrize(("name", "number"), [("SEGV", 11), ("KILL", 9), ("ABRT", 6)])
    def test_a_signal_shows_as_128_plus_its_number(self, link: Link, name: str, number: int) -> None:
        assert link.transport.run(["sh", "-c", f"kill -{name} $$"], LIMIT_S).exit_status == 128 + number

    def test_a_missing_program_is_127_and_one_that_may_not_run_126(self, link: Link) -> None:
        link.sh('echo data >"$1"', f"{link.folder}/plain")
        assert link.transport.run(["farm-has-no-such-program"], LIMIT_S).exit_status == 127
        assert link.transport.run([f"{link.folder}/plain"], LIMIT_S).exit_status == 126

    def test_three_megabytes_on_both_streams_at_once(self, link: Link) -> None:
        script = "head -c 3000000 /dev/zero | tr '\\0' e >&2 & head -c 3000000 /dev/zero | tr '\\0' o; wait"
        done = link.transport.run(["sh", "-c", script], LIMIT_S)
        out = done.stdout + done.stderr
        assert (out.count(b"o"), out.count(b"e"), len(out)) == (3_000_000, 3_000_000, 6_000_000)
        if not link.merged:
            assert set(done.stderr) == {ord("e")}

    def test_deadline_is_wall_clock_even_while_output_flows(self, link: Link) -> None:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            link.transport.run(["sh", "-c", "while :; do echo tick; sleep 0.05; done"], 0.7)
        assert time.monotonic() - start < 8
        assert "tick" in caught.value.output

    def test_deadline_kills_children_and_grandchildren(self, link: Link) -> None:
        mark = f"farm{os.urandom(6).hex()}"
        # The mark is put together over there: only the processes themselves carry it, not what starts them.
        script = (
            "trap '' HUP TERM; m=$1$2; loop=\"trap '' HUP TERM; while :; do sleep 1; done; : $m\"\n"
            'sh -c "sh -c \\"\\$0\\" & sh -c \\"\\$0\\"" "$loop" & wait'
        )
        with pytest.raises(DeadlineExceeded):
            link.transport.run(["sh", "-c", f"{script}", "sh", mark[:4], mark[4:]], 0.8)
        assert not alive(link.transport, mark)

    def test_the_processes_of_that_test_are_really_found(self, link: Link) -> None:
        mark = f"farm{os.urandom(6).hex()}"
        # Else the search above could not fail.
        look = (
            'for p in /proc/[0-9]*; do tr "\\0" " " <"$p/cmdline" | grep -q "$m" && echo found; done 2>/dev/null; true'
        )
        assert b"found" in link.sh(f'm=$1$2; sh -c "sleep 5; : $m" & {look}', mark[:4], mark[4:]).stdout

    @pytest.mark.parametrize("limit_s", [0.02, 0.12])
    def test_a_program_that_was_just_starting_at_the_deadline_never_starts(self, link: Link, limit_s: float) -> None:
        mark = f"farm{os.urandom(6).hex()}"
        with pytest.raises(DeadlineExceeded):
            link.transport.run(["sh", "-c", 'sh -c "sleep 60; : $1$2"', "sh", mark[:4], mark[4:]], limit_s)
        assert not alive(link.transport, mark)

    def test_the_link_works_after_a_deadline(self, link: Link) -> None:
        with pytest.raises(DeadlineExceeded):
            link.transport.run(["sleep", "60"], 0.5)
        assert link.transport.run(["echo", "again"], LIMIT_S).stdout == b"again\n"

    def test_what_a_program_leaves_behind_is_killed_and_not_waited_for(self, link: Link) -> None:
        mark = f"farm{os.urandom(6).hex()}"
        start = time.monotonic()
        script = 'sh -c "sleep 30; : $1$2" & echo started'
        done = link.transport.run(["sh", "-c", script, "sh", mark[:4], mark[4:]], LIMIT_S)
        assert (done.exit_status, done.stdout) == (0, b"started\n")
        assert time.monotonic() - start < 10
        assert not alive(link.transport, mark)

    def test_a_word_no_program_can_be_given_is_refused(self, link: Link) -> None:
        for argv in ([], [""], ["echo", "a\0b"]):
            with pytest.raises(InvalidInput):
                link.transport.run(argv, LIMIT_S)

    @pytest.mark.parametrize("size", [0, 1, 65536, 3_000_001])
    def test_push_and_pull_keep_every_byte(self, link: Link, tmp_path: Path, size: int) -> None:
        source, back = tmp_path / "source", tmp_path / "deep" / "back"
        source.write_bytes(os.urandom(size))
        far = f"{link.folder}/new folder/it's $(x) ä"
        link.transport.push(source, far, LIMIT_S)
        link.transport.pull(far, back, LIMIT_S, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
        assert back.read_bytes() == source.read_bytes()

    def test_push_replaces_and_leaves_nothing_else(self, link: Link, tmp_path: Path) -> None:
        source = tmp_path / "source"
        for text in (b"first, longer", b"second"):
            source.write_bytes(text)
            link.transport.push(source, f"{link.folder}/file", LIMIT_S)
        assert link.sh('cat "$1"', f"{link.folder}/file").stdout == b"second"
        assert link.listing() == ["file"]

    def test_push_sets_the_mode(self, link: Link, tmp_path: Path) -> None:
        program = tmp_path / "program"
        program.write_text("#!/bin/sh\necho ran\n")
        link.transport.push(program, f"{link.folder}/program", LIMIT_S, mode=0o755)
        assert link.transport.run([f"{link.folder}/program"], LIMIT_S).stdout == b"ran\n"
        link.transport.push(program, f"{link.folder}/data", LIMIT_S)
        assert link.sh('stat -c %a "$1"', f"{link.folder}/data").stdout == b"644\n"

    def test_push_of_a_missing_file_leaves_nothing(self, link: Link, tmp_path: Path) -> None:
        with pytest.raises(TransferFailed, match="nowhere"):
            link.transport.push(tmp_path / "nowhere", f"{link.folder}/file", LIMIT_S)
        assert link.listing() == []

    def test_push_over_a_folder_is_refused(self, link: Link, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x")
        link.sh('mkdir "$1"', f"{link.folder}/taken")
        with pytest.raises(TransferFailed):
            link.transport.push(source, f"{link.folder}/taken", LIMIT_S)
        assert link.listing() == ["taken"]
        assert link.sh('ls -A "$1"', f"{link.folder}/taken").stdout == b""

    def test_push_to_a_full_disk_says_so_and_leaves_nothing(self, link: Link, tmp_path: Path) -> None:
        if link.tiny is None:
            pytest.skip("a far folder with little space needs root here (tmpfs)")
        source = tmp_path / "source"
        source.write_bytes(os.urandom(3_000_000))
        with pytest.raises(NoSpace):
            link.transport.push(source, f"{link.tiny}/file", LIMIT_S)
        assert link.sh('ls -A "$1"', link.tiny).stdout == b""

    def test_pull_with_another_hash_leaves_nothing(self, link: Link, tmp_path: Path) -> None:
        link.sh('echo data >"$1"', f"{link.folder}/file")
        with pytest.raises(TransferFailed, match="sha256"):
            link.transport.pull(f"{link.folder}/file", tmp_path / "back", LIMIT_S, sha256="0" * 64)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("what", ["missing", "folder", "fifo"])
    def test_pull_of_what_is_no_file_fails_and_leaves_nothing(self, link: Link, tmp_path: Path, what: str) -> None:
        link.sh('cd "$1" && mkdir folder && mkfifo fifo', link.folder)
        with pytest.raises(TransferFailed, match=what):
            link.transport.pull(f"{link.folder}/{what}", tmp_path / "back", LIMIT_S)
        assert list(tmp_path.iterdir()) == []

    def test_pull_keeps_the_old_file_when_it_fails(self, link: Link, tmp_path: Path) -> None:
        (tmp_path / "back").write_bytes(b"old")
        with pytest.raises(TransferFailed):
            link.transport.pull(f"{link.folder}/missing", tmp_path / "back", LIMIT_S)
        assert (tmp_path / "back").read_bytes() == b"old"

    def test_close_from_another_thread_wakes_who_waits(self, link: Link) -> None:
        transport = link.fresh()
        transport.connect(LIMIT_S)
        mark = f"farm{os.urandom(6).hex()}"
        started = f"{link.folder}/started"
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                transport.run(["sh", "-c", f'touch "$1"; sleep 60; : {mark}', "sh", started], 60)
            except InfraError as e:
                failures.append(e)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: bool(link.listing()))
        start = time.monotonic()
        transport.close()
        waiter.join(8)
        assert not waiter.is_alive()
        assert time.monotonic() - start < 8
        assert [type(f) for f in failures] == [DeviceLost]
        transport.connect(LIMIT_S)
        until(lambda: not alive(link.transport, mark))
        transport.close()

    def test_closed_link_refuses_and_connect_opens_it_again(self, link: Link) -> None:
        transport = link.fresh()
        transport.connect(LIMIT_S)
        transport.close()
        transport.close()
        with pytest.raises(DeviceLost, match="connect"):
            transport.run(["true"], LIMIT_S)
        transport.connect(LIMIT_S)
        transport.connect(LIMIT_S)
        assert transport.run(["echo", "back"], LIMIT_S).stdout == b"back\n"
        transport.close()

    def test_a_time_out_that_is_no_time_is_a_mistake_of_the_caller(self, link: Link) -> None:
        with pytest.raises(ValueError, match="time-out"):
            link.transport.run(["true"], 0)

    def test_it_is_a_transport(self, link: Link) -> None:
        assert isinstance(link.transport, Transport)


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for something that another process does; fail when it does not come."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        threading.Event().wait(0.02)
