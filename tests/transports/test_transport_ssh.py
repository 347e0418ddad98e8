"""SSH's own faults (S1-S10), host keys, logins and jumps, against a real sshd."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from farm.errors import DeviceLost, DeviceUnavailable, HostKeyRefused, InvalidInput, TransferFailed
from farm.probe import probe
from farm.transports import ssh
from farm.transports.base import Deadline
from farm.transports.ssh import SshTransport
from farm.transports.ssh_connect import _route, _split, offered_key
from tests.lab.faults import Proxy, proxy, silent_listener
from tests.lab.ports import free_port
from tests.lab.sshd import Sshd, make_key, sshd_program
from tests.transports.contract import alive, until


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A sshd that a test may break."""
    if sshd_program() is None:
        pytest.skip("sshd is not installed (openssh-server)")
    server = Sshd(folder=tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def wire(sshd: Sshd) -> Iterator[Proxy]:
    with proxy(sshd.port) as made:
        yield made


@pytest.fixture
def link(sshd: Sshd, wire: Proxy, tmp_path: Path) -> Iterator[SshTransport]:
    """A connection whose wire can be frozen and cut."""
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts.read_text().replace(f":{sshd.port} ", f":{wire.port} "))
    transport = SshTransport(f"lab:{wire.port}", config=sshd.config, known_hosts=known)
    transport.connect(15)
    yield transport
    transport.close()


def reach(server: Sshd, **more: Path) -> SshTransport:
    return SshTransport("lab", **{"config": server.config, "known_hosts": server.known_hosts, **more})


# --- host keys ----------------------------------------------------------------------------------------------------


def test_an_unknown_host_is_refused_with_its_fingerprint_and_the_cure(sshd: Sshd, tmp_path: Path) -> None:
    printed = subprocess.run(["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], capture_output=True, text=True, check=True)
    with pytest.raises(HostKeyRefused, match="is unknown") as caught:
        reach(sshd, known_hosts=tmp_path / "none").connect(10)
    assert printed.stdout.split()[1] in str(caught.value)
    assert f"farm trust 127.0.0.1:{sshd.port}" in str(caught.value)


def test_a_changed_host_key_is_refused_and_both_fingerprints_told(sshd: Sshd, tmp_path: Path) -> None:
    kind, other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd.port} {kind} {other}\n")
    with pytest.raises(HostKeyRefused, match="CHANGED") as caught:
        reach(sshd, known_hosts=tmp_path / "known").connect(10)
    assert str(caught.value).count("SHA256:") == 2
    assert "farm trust" not in str(caught.value)


def test_a_host_known_by_another_kind_of_key_only_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    kind, other = make_key(tmp_path / "other", "ecdsa").with_suffix(".pub").read_text().split()[:2]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd.port} {kind} {other}\n")
    with pytest.raises(HostKeyRefused):
        reach(sshd, known_hosts=tmp_path / "known").connect(10)


def test_a_revoked_key_is_refused_though_it_is_known(sshd: Sshd, tmp_path: Path) -> None:
    known = sshd.known_hosts.read_text()
    (tmp_path / "known").write_text(known + f"@revoked * {known.split()[1]} {known.split()[2]}\n")
    with pytest.raises(HostKeyRefused, match="revoked"):
        reach(sshd, known_hosts=tmp_path / "known").connect(10)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("[127.0.0.1]:PORT", True),
        ("other,[127.0.0.1]:PORT", True),
        ("[127.0.0.*]:PORT", True),
        ("HASHED", True),
        ("*", True),
        ("*,![127.0.0.1]:PORT", False),
        ("127.0.0.1", False),
        ("[127.0.0.1]:1", False),
    ],
)
def test_names_in_known_hosts_are_read_as_ssh_reads_them(sshd: Sshd, tmp_path: Path, names: str, known: bool) -> None:
    hashed = paramiko.HostKeys.hash_host(f"[127.0.0.1]:{sshd.port}")
    names = names.replace("PORT", str(sshd.port)).replace("HASHED", hashed)
    key = sshd.known_hosts.read_text().split(maxsplit=1)[1]
    (tmp_path / "known").write_text(f"# a comment of three words\n\nbroken\nx ssh-ed25519 !!!\n{names} {key}")
    link = reach(sshd, known_hosts=tmp_path / "known")
    if known:
        link.connect(10)
        link.close()
    else:
        with pytest.raises(HostKeyRefused, match="unknown"):
            link.connect(10)


def test_the_kind_of_key_we_know_is_asked_for(own_sshd: Sshd, tmp_path: Path) -> None:
    own_sshd.stop()
    make_key(own_sshd.folder / "rsa_key", "rsa")
    own_sshd.extra = (f"HostKey {own_sshd.folder}/rsa_key",)
    own_sshd.start()
    kind, key = (own_sshd.folder / "rsa_key.pub").read_text().split()[:2]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{own_sshd.port} {kind} {key}\n")
    link = reach(own_sshd, known_hosts=tmp_path / "known")
    link.connect(10)
    link.close()


def test_trusting_what_was_offered_lets_the_host_in(sshd: Sshd, tmp_path: Path) -> None:
    key = offered_key("lab", Deadline(10), config=sshd.config)
    (tmp_path / "known").write_text(key.line + "\n")
    link = reach(sshd, known_hosts=tmp_path / "known")
    link.connect(10)
    link.close()
    with pytest.raises(HostKeyRefused, match=key.fingerprint.replace("+", r"\+")):
        reach(sshd, known_hosts=tmp_path / "none").connect(10)


# --- opening ------------------------------------------------------------------------------------------------------


def test_a_host_that_takes_none_of_our_keys_says_which_were_tried(sshd: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    config = tmp_path / "config"
    config.write_text(sshd.config.read_text().replace(f"{sshd.folder}/user_key", f"{tmp_path}/stranger"))
    with pytest.raises(DeviceUnavailable, match="stranger") as caught:
        reach(sshd, config=config).connect(10)
    assert "ssh-copy-id" in str(caught.value)


def test_nobody_listening_is_told_apart_from_a_silent_peer(sshd: Sshd) -> None:
    start = time.monotonic()
    with pytest.raises(DeviceUnavailable, match="refuses"):
        SshTransport(f"127.0.0.1:{free_port()}", known_hosts=sshd.known_hosts).connect(5)
    with silent_listener() as port, pytest.raises(DeviceUnavailable, match="no SSH"):
        SshTransport(f"127.0.0.1:{port}", known_hosts=sshd.known_hosts).connect(1)
    assert time.monotonic() - start < 5


def test_a_jump_host_is_gone_through(sshd: Sshd, own_sshd: Sshd, tmp_path: Path) -> None:
    config, known = tmp_path / "config", tmp_path / "known"
    config.write_text(
        sshd.config.read_text().replace("Host lab", "Host far")
        + " ProxyJump near\n"
        + own_sshd.config.read_text().replace("Host lab", "Host near")
    )
    known.write_text(sshd.known_hosts.read_text() + own_sshd.known_hosts.read_text())
    link = SshTransport("far", config=config, known_hosts=known)
    link.connect(15)
    assert len(own_sshd.sessions()) > 0
    assert link.run(["echo", "through"], 10).stdout == b"through\n"
    link.close()
    # The jump host is verified as well.
    known.write_text(sshd.known_hosts.read_text())
    with pytest.raises(HostKeyRefused, match=str(own_sshd.port)):
        link.connect(15)


def test_a_circle_of_jumps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(InvalidInput, match="circle"):
        SshTransport("a", config=tmp_path / "config", known_hosts=tmp_path / "k").connect(5)


def test_a_proxy_command_is_refused_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host a\n ProxyCommand nc %h %p\n")
    with pytest.raises(InvalidInput, match="ProxyJump"):
        SshTransport("a", config=tmp_path / "config", known_hosts=tmp_path / "k").connect(5)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("mac", (None, "mac", None)),
        ("me@mac", ("me", "mac", None)),
        ("me@mac:2222", ("me", "mac", 2222)),
        ("ssh://me@mac:2222/", ("me", "mac", 2222)),
        ("[::1]:2222", (None, "::1", 2222)),
        ("fe80::1", (None, "fe80::1", None)),
        ("a@b@mac", ("a@b", "mac", None)),
    ],
)
def test_hosts_are_written_as_for_ssh(spec: str, expected: tuple[str | None, str, int | None]) -> None:
    assert _split(spec) == expected


@pytest.mark.parametrize("spec", ["", "me@", "mac:port", "-oProxyCommand=x", "[::1"])
def test_what_is_no_host_is_refused(spec: str) -> None:
    with pytest.raises(InvalidInput, match="no SSH host"):
        _split(spec)


def test_ports_and_aliases_name_the_host_key(tmp_path: Path) -> None:
    config = paramiko.SSHConfig.from_text(
        "Host a\n HostName x\nHost b\n HostName x\n Port 99\nHost c\n HostKeyAlias y\n"
    )
    assert [_route(h, config, None)[0].known_as for h in "abc"] == ["x", "[x]:99", "y"]


# --- breaking -----------------------------------------------------------------------------------------------------


def test_a_killed_session_is_a_lost_device_and_not_an_exit_code(own_sshd: Sshd, tmp_path: Path) -> None:
    link = reach(own_sshd)
    link.connect(10)
    failures = []

    def work() -> None:
        try:
            link.run(["sh", "-c", 'touch "$1"; sleep 30', "sh", f"{tmp_path}/runs"], 30)
        except DeviceLost as e:
            failures.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    until((tmp_path / "runs").exists)
    for pid in own_sshd.sessions():
        os.kill(pid, signal.SIGKILL)
    thread.join(10)
    assert len(failures) == 1
    link.connect(10)
    assert link.run(["echo", "back"], 10).stdout == b"back\n"
    link.close()


def test_what_a_cut_connection_left_running_is_dead_after_reconnecting(link: SshTransport, wire: Proxy) -> None:
    mark = f"farm{os.urandom(6).hex()}"
    other = threading.Timer(1.0, wire.cut)
    other.start()
    with pytest.raises(DeviceLost, match="broke"):
        link.run(["sh", "-c", "trap '' HUP PIPE; sh -c \"sleep 60; : $1$2\"", "sh", mark[:4], mark[4:]], 20)
    link.connect(15)
    assert not alive(link, mark)


def test_a_frozen_peer_is_noticed_when_connecting_again(link: SshTransport, wire: Proxy) -> None:
    wire.freeze()
    start = time.monotonic()
    with pytest.raises(DeviceUnavailable):
        link.connect(4)
    assert time.monotonic() - start < 8
    wire.thaw()
    link.connect(15)
    assert link.run(["echo", "back"], 10).stdout == b"back\n"


def test_a_peer_that_freezes_in_a_call_ends_at_its_deadline(
    link: SshTransport, wire: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "KILL_LIMIT_S", 0.5)
    threading.Timer(0.3, wire.freeze).start()
    start = time.monotonic()
    with pytest.raises((DeviceLost, DeviceUnavailable)):
        link.run(["sleep", "60"], 1.0)
    assert time.monotonic() - start < 6


def test_a_push_that_is_cut_leaves_nothing_under_the_name(link: SshTransport, wire: Proxy, tmp_path: Path) -> None:
    source, far = tmp_path / "source", tmp_path / "far"
    source.write_bytes(os.urandom(5_000_000))
    far.mkdir()
    wire.cut_after(1_000_000)
    with pytest.raises(DeviceLost):
        link.push(source, f"{far}/model", 20)
    assert not (far / "model").exists()
    link.connect(15)
    link.push(source, f"{far}/model", 20)
    assert (far / "model").read_bytes() == source.read_bytes()
    until(lambda: [p.name for p in far.iterdir()] == ["model"])


def test_a_push_to_a_folder_that_may_not_be_written_says_why(link: SshTransport, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(TransferFailed, match="did not arrive"):
        link.push(source, "/proc/farm/model", 20)


# --- the far side's habits ----------------------------------------------------------------------------------------


def test_what_start_up_files_print_does_not_get_into_the_output(own_sshd: Sshd, tmp_path: Path) -> None:
    own_sshd.stop()
    (tmp_path / "noisy").write_text('#!/bin/sh\necho "Welcome!"; echo "warning: x" >&2\neval "$SSH_ORIGINAL_COMMAND"\n')
    (tmp_path / "noisy").chmod(0o755)
    own_sshd.extra = (f"ForceCommand {tmp_path}/noisy",)
    own_sshd.start()
    link = reach(own_sshd)
    link.connect(10)
    done = link.run(["sh", "-c", "echo out; echo err >&2"], 10)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    (tmp_path / "file").write_bytes(b"bytes")
    link.pull(f"{tmp_path}/file", tmp_path / "back", 10)
    assert (tmp_path / "back").read_bytes() == b"bytes"
    link.close()


def test_a_host_is_probed(sshd: Sshd) -> None:
    link = reach(sshd)
    link.connect(10)
    facts = probe(link, 15)
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts["platform"].startswith("linux-")
    link.close()


def test_the_hosts_environment_reaches_programs(sshd: Sshd) -> None:
    link = SshTransport("lab", config=sshd.config, known_hosts=sshd.known_hosts, env={"VK_ICD_FILENAMES": "/a b.json"})
    link.connect(10)
    assert link.run(["sh", "-c", "echo $VK_ICD_FILENAMES"], 10).stdout == b"/a b.json\n"
    link.close()
