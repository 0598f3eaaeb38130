"""``weave profile``: jobs measured alone, at the limit and as they come, and plans that read it."""

import json

import pytest

from weave_scheduler.cli import _code_of
from weave_scheduler.document import SpecError
from weave_scheduler.laws import Empirical
from weave_scheduler.planinput import job_models
from weave_scheduler.profile import parse_profile, read_profile, with_profile
from weave_scheduler.specfile import parse_spec

SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=500"]
  train: ["emulated:h800?capacity=6MB&scale=1024&speed=500"]
nodes: {rollout: {price: 1.85}, train: {price: 5.28}}
jobs:
  - name: a
    kind: synthetic
    iterations: 4
    state: {rollout: {weights: 1GB, kv_cache: 1GB}, train: {optimizer: 2GB}}
    phases: {rollout: {law: lognormal, mean: 20s, cv: 0.2, max: 60s}, train: 10s}
  - name: b
    kind: synthetic
    iterations: 4
    state: {train: {weights: 1GB}}
    phases: {train: {law: lognormal, mean: 10s, cv: 0.1}}
"""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    (folder / "spec.yaml").write_text(SPEC)
    out = folder / "profile.json"
    code = _code_of(["profile", str(folder / "spec.yaml"), "-k", "3", "--out", str(out)])
    return folder, code, json.loads(out.read_text())


def test_a_profile_says_what_each_phase_takes_and_holds(profiled):
    _, code, record = profiled
    assert code == 0
    assert (record["format"], record["version"]) == ("weave-profile", 1)
    assert record["conditions"]["cores"] >= 1
    first, second = record["jobs"]
    assert list(first["phases"]) == ["rollout", "train"]
    rollout = first["phases"]["rollout"]
    assert rollout["n"] == 3
    assert rollout["limit_s"] >= 60 > 5 < rollout["mean_s"]
    assert len(rollout["law"]["values_s"]) == 3
    scale = 1024 * 8  # bytes come in whole words of the device
    assert first["bytes"]["train"]["optimizer"] == pytest.approx(2e9, abs=scale)
    nothing = {"running": 0, "sleeping": 0}
    assert first["unmanaged"] == {"rollout": nothing, "train": nothing}
    assert "limit_s" not in second["phases"]["train"]  # its law has no max
    assert "tokens" not in first


def test_a_plan_takes_the_measured_laws(profiled):
    folder, _, record = profiled
    loaded = parse_spec(SPEC.replace("cv: 0.1}", "cv: 0.1, max: 11s}"))
    profile = read_profile(folder / "profile.json")
    models = {job.name: job for job in job_models(with_profile(loaded, {"a": profile["a"]}))}
    assert isinstance(models["a"].phases[0].law, Empirical)
    assert models["a"].solo_max_s == pytest.approx(
        sum(phase["limit_s"] for phase in record["jobs"][0]["phases"].values())
    )
    assert models["a"].train_need.host_bytes == record["jobs"][0]["bytes"]["train"]["optimizer"]
    assert models["b"].solo_max_s == 11  # not in this profile: as the spec says


def test_a_plan_takes_what_was_measured_outside_regions(profiled):
    _, _, record = profiled
    spec = SPEC.replace("name: b", "name: c").replace("cv: 0.1}", "cv: 0.1, max: 11s}")
    spec = spec.replace(
        "    state: {rollout: {weights: 1GB",
        "    unmanaged: {train: {running: 70MB}}\n    state: {rollout: {weights: 1GB",
    )
    job = {**record["jobs"][0], "unmanaged": {"rollout": {"running": 9, "sleeping": 4}}}
    profile = parse_profile({**record, "jobs": [job]})
    model = next(j for j in job_models(with_profile(parse_spec(spec), profile)) if j.name == "a")
    assert (model.rollout_need.running_bytes, model.rollout_need.residual_bytes) == (9, 4)
    assert model.train_need.running_bytes == 70_000_000  # as the spec says
    plain = next(j for j in job_models(parse_spec(spec)) if j.name == "a")
    assert plain.rollout_need.running_bytes == 0


def test_plan_and_run_read_the_file(profiled, capsys):
    folder, _, _ = profiled
    path = folder / "max.yaml"
    path.write_text(SPEC.replace("cv: 0.1}", "cv: 0.1, max: 11s}").replace("name: b", "name: c"))
    profile = str(folder / "profile.json")
    assert _code_of(["plan", str(path), "--profile", profile, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["format"] == "weave-plan"
    assert _code_of(["run", str(path), "--profile", profile, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["format"] == "weave-run"
    assert "plan:" in captured.err


def test_a_missing_or_foreign_profile_is_the_users_mistake(profiled, capsys):
    folder, _, _ = profiled
    spec = str(folder / "spec.yaml")
    assert _code_of(["plan", spec, "--profile", str(folder / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert _code_of(["plan", spec, "--profile", spec]) == 2
    assert "is not JSON" in capsys.readouterr().err
    assert _code_of(["profile", spec, "-k", "0"]) == 2
    assert "allowed: 1 or more" in capsys.readouterr().err


def test_no_common_job_is_refused(profiled):
    folder, _, _ = profiled
    other = parse_spec(SPEC.replace("name: a", "name: x").replace("name: b", "name: y"))
    with pytest.raises(SpecError, match="none of them is in the profile"):
        with_profile(other, read_profile(folder / "profile.json"))


WRONG = [
    ({"format": "weave-run"}, "is no profile"),
    ({"version": 2}, "version: 2 is not known; allowed: 1"),
    ({"jobs": {}}, "jobs: must be a list"),
    ({"jobs": [{}]}, "jobs.0.name: is missing"),
    ({"jobs": [{"name": "a", "unmanaged": []}]}, "jobs.0.unmanaged: must be a mapping"),
    ({"jobs": [{"name": "a", "unmanaged": {"tpu": {}}}]}, "jobs.0.unmanaged.tpu: is no pool"),
    (
        {"jobs": [{"name": "a", "unmanaged": {"train": {"running": 1, "sleeping": 2}}}]},
        "jobs.0.unmanaged.train: sleeping is more than running",
    ),
    (
        {"jobs": [{"name": "a", "unmanaged": {"train": {"running": -1}}}]},
        "jobs.0.unmanaged.train.running",
    ),
    ({"jobs": [{"name": "a", "phases": {"roll": {}}}]}, "jobs.0.phases.roll: {} is no measured"),
    ({"jobs": [{"name": "a", "phases": {"train": {"law": -1}}}]}, "jobs.0.phases.train.law: -1"),
    ({"jobs": [{"name": "a", "bytes": {"cpu": {}}}]}, "jobs.0.bytes.cpu: is no pool"),
    ({"jobs": [{"name": "a", "bytes": {"train": {"x": 1}}}]}, "jobs.0.bytes.train.x: is no tag"),
    ({"jobs": [{"name": "a", "bytes": {"train": {"weights": -1}}}]}, "weights: -1 is out of range"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_profiles_are_refused_with_the_field(change, message):
    with pytest.raises(SpecError) as error:
        parse_profile({"format": "weave-profile", "version": 1, "jobs": [], **change}, "p.json")
    assert str(error.value).startswith("p.json: ")
    assert message in str(error.value)
