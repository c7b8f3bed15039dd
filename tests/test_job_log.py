"""What is read from a log: its end as a terminal shows it, and the reason of a failure."""

import pytest

from gamelora.job_log import tail, why_failed

TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    run()"]


def test_tail_reads_the_last_lines_of_a_large_log_only(tmp_path, monkeypatch):
    log = tmp_path / "log.txt"
    with open(log, "wb") as file:
        file.truncate(2**36)  # 64 GiB, sparse: reading it whole would not end
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"line %d\n" % number for number in range(50)))
    assert tail(log, 3) == ["line 47", "line 48", "line 49"]
    assert tail(log, 0) == []


def test_tail_survives_bytes_that_are_no_text(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes("naïve\n".encode("latin-1") + b"\x00\x1b[31mred\x1b[0m\xff\n" + "prix 3 €".encode()[:-1])
    assert tail(log) == ["na�ve", "red�", "prix 3 �"]
    log.write_bytes("é".encode() * 100_000)  # one line longer than what is read, cut inside a character
    assert set(tail(log)[0]) <= {"é", "�"}
    assert tail(tmp_path / "missing.txt") == []


def test_tail_shows_the_last_state_of_a_progress_bar(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"start\r\n\rmeasuring  0%\rmeasuring 50%\rmeasuring 100%\nend\n\n\n")
    assert tail(log) == ["start", "measuring 100%", "end"]


@pytest.mark.parametrize(
    ("code", "rows", "expected"),
    [
        (2, ["warming up", "error: tokens must be at least 256, not 10"], "tokens must be at least 256, not 10"),
        (2, ["error: first", "error: second", ""], "second"),
        (1, [*TRACEBACK, "KeyError: 'x'"], "exit code 1: KeyError: 'x'"),
        (3, ["something odd"], "exit code 3: something odd"),
        (3, [], "exit code 3, and its log is empty"),
        (-9, ["error: not the reason"], "killed by signal 9 (often the system running out of memory)"),
        (-11, ["step 3"], "killed by signal 11 (Segmentation fault)"),
        (1, [*TRACEBACK, "MemoryError"], "out of memory: MemoryError"),
        (
            1,
            [*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"],
            "out of memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (
            1,
            ["[rank1]: RuntimeError: CUDA error: out of memory", "subprocess.CalledProcessError: Command 'x' returned 1"],
            "out of memory: RuntimeError: CUDA error: out of memory",
        ),
        (-6, ["terminate called after throwing an instance of 'std::bad_alloc'"], "out of memory: terminate called"),
        (2, ["error: [Errno 28] No space left on device: 'a.npz'"], "disk full: [Errno 28] No space left on device: 'a.npz'"),
        (1, [*TRACEBACK, "SafetensorError: I/O error: No space left on device (os error 28)"], "disk full: SafetensorError"),
        (1, ["  exitcode  : -9 (pid: 71)", "ChildFailedError: "], "killed by signal 9 (often"),
        (1, ["an out of memory was avoided", "error: no such model"], "no such model"),
        (None, ["step 1", "step 2", ""], "it was ended from outside before its outcome was written"),
        (None, ["OSError: [Errno 28] No space left on device", "step 9"], "the last line of its log: step 9"),
        (None, ["OSError: [Errno 28] No space left on device"], "disk full: "),
    ],
)
def test_the_reason_of_a_failure(code, rows, expected):
    assert expected in why_failed(code, rows)
    assert "\n" not in why_failed(code, rows)


def test_a_reason_stays_short():
    assert len(why_failed(1, ["ValueError: " + "x" * 10_000])) == 500
