"""Measurement requests: a name and a command for each, the same for the same request."""

import re
from dataclasses import replace

import pytest

from analysis.__main__ import COMMANDS
from analysis.workspace import safe_name
from gamelora import jobs, measurement_jobs
from gamelora.measurement_jobs import MeasurementRequest, latest_jobs, request_like
from tests.synthetic import synthetic_result

REQUESTS = [
    MeasurementRequest(),
    MeasurementRequest(tokens=4096),
    MeasurementRequest(source="HuggingFaceTB/SmolLM2-135M-Instruct"),
    MeasurementRequest(source="HuggingFaceTB/SmolLM2-135M-Instruct", revision="v1"),
    MeasurementRequest(source="/models/SmolLM2-135M-Instruct"),
    MeasurementRequest(adapter="/runs/one/adapter"),
    MeasurementRequest(adapter="/runs/two/adapter"),
    MeasurementRequest(text="/texts/builtin"),
    MeasurementRequest(text="pile"),
    MeasurementRequest(dtype="bfloat16"),
    MeasurementRequest(gradient="mean"),
    MeasurementRequest(source="/models/" + "x" * 300),
    MeasurementRequest(source="/models/my_model#1 50%&[x]\\y"),
    MeasurementRequest(source="/modèles/模型"),
    MeasurementRequest(source="..", adapter="../../.."),
]


def test_every_request_has_a_name_of_its_own_that_can_be_a_file():
    names = [request.name for request in REQUESTS]
    assert len(set(names)) == len(REQUESTS)
    assert [safe_name(name) for name in names] == names
    assert [replace(request).name for request in REQUESTS] == names


def test_the_default_measurement_has_a_name_for_people():
    assert MeasurementRequest().name == "SmolLM2-135M-Instruct-builtin-2048"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name[-20:])
def test_the_command_line_reads_the_request_back(request_, workspace):
    import argparse

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in COMMANDS:
        module.add_commands(commands)
    assert request_.arguments[0] == "analysis"
    options = parser.parse_args(request_.arguments[1:])
    assert (options.model, options.revision, options.adapter) == (request_.source, request_.revision, request_.adapter)
    assert (options.text, options.tokens, options.dtype) == (request_.text, request_.tokens, request_.dtype)
    assert (options.coupling, options.gradient) == ("invariant", request_.gradient)
    assert options.out == request_.path and request_.path.parent == workspace / "results"
    rows = request_.tokens // options.seq_len
    assert 1 <= options.batch_size <= 8 and rows / options.batch_size >= 8


def test_a_request_like_a_result_changes_only_the_text():
    provenance = synthetic_result(adapter="/runs/a", source="/m").provenance
    request = request_like(provenance, "pile", 512)
    assert request == MeasurementRequest("/m", None, "/runs/a", "pile", 512, "float32", "token")


def test_starting_twice_is_one_job_under_the_results_name(workspace, monkeypatch):
    monkeypatch.setattr(measurement_jobs.MeasurementRequest, "arguments", property(lambda self: ["this_module_does_not_exist"]))
    request = MeasurementRequest()
    first, second = request.start(), request.start()
    assert first.id == second.id or not first.live
    assert first.title == "SmolLM2-135M-Instruct, built-in, 2,048 tokens"
    assert set(latest_jobs()) == {request.name}
    assert re.fullmatch(r"interaction:SmolLM2-135M-Instruct-builtin-2048", first.target)
    jobs.stop(first.id)
