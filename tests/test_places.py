"""Where rows lie, and the data folder as a setting of the workspace."""

import pytest

from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.data import load_items
from analysis.hallucination.places import data_folder, local_file, rows_from, use_data_folder

TRAP = BENCHMARKS["memo_trap"]
ROW = '{"prompt": "Say", "classes": [" no.", " yes."], "answer_index": 1}\n'


def test_the_data_folder_is_kept_for_the_workspace(workspace, tmp_path):
    assert data_folder() == workspace / "data"
    with pytest.raises(ValueError, match=r"no data folder .*nowhere"):
        use_data_folder(tmp_path / "nowhere")
    assert data_folder() == workspace / "data"
    (tmp_path / "rows").mkdir()
    assert use_data_folder(f" {tmp_path / 'rows'} ") == data_folder() == tmp_path / "rows"
    assert use_data_folder("") == data_folder() == workspace / "data"


def test_rows_come_from_the_program_a_file_or_the_hub(workspace, tmp_path):
    assert rows_from(BENCHMARKS["builtin_qa"]) == "built-in"
    assert rows_from(TRAP) == "hub pminervini/inverse-scaling"
    (tmp_path / "memo_trap.jsonl").write_text(ROW)
    use_data_folder(tmp_path)
    assert rows_from(TRAP) == "file memo_trap.jsonl" and local_file(TRAP, TRAP.file) == tmp_path / "memo_trap.jsonl"
    assert rows_from(TRAP, workspace) == "hub pminervini/inverse-scaling"
    (tmp_path / "memo_trap.jsonl").rename(tmp_path / "memo_trap.jsonl.gz")
    assert rows_from(TRAP) == "file memo_trap.jsonl.gz"


def test_the_reader_reads_where_it_is_said_to_lie(workspace, tmp_path, monkeypatch):
    (tmp_path / "memo_trap.jsonl").write_text(ROW * 2)
    use_data_folder(tmp_path)
    assert load_items(TRAP).provenance["source"] == str(tmp_path / "memo_trap.jsonl")
    monkeypatch.chdir(tmp_path)
    assert load_items(TRAP, ".").provenance["source"] == str(tmp_path / "memo_trap.jsonl")


def test_a_damaged_setting_is_named(workspace):
    workspace.mkdir()
    (workspace / "data-folder.json").write_text("{")
    with pytest.raises(ValueError, match=r"data-folder.json is damaged"):
        data_folder()
