"""What `make test-deploy` runs: the chart, the systemd units, the image's files."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.options.server import ServerSettings
from tests.api.tiny import make_model
from tests.deploy.image_root import make_root, packed_size_of, public_python, size_of

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "octavo"
MOST_PACKED_BYTES = 100 << 20  # of what the image adds to Python's
NOBODY = 65534


# the chart


def rendered(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the chart's objects as Helm itself renders them, by their kinds."""
    chart = pytest.importorskip("helm_python.chart")
    texts = chart.Chart.load(str(CHART)).render(dict(values or {}), name="demo", namespace="x")
    found = [each for text in texts.values() for each in yaml.safe_load_all(text) if each]
    return {each["kind"]: each for each in found}


ALL: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "hubTokenSecret": "hub",
    "models": {"existingClaim": "models"},
    "nodeSelector": {"disktype": "ssd"},
    "tolerations": [{"key": "llm", "operator": "Exists"}],
    "args": ["--max-num-seqs", "8"],
}


@pytest.mark.parametrize("values", [{}, ALL])
def test_kubernetes_accepts_each_object(values: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    objects = rendered(values)
    assert {"Deployment", "Service", "PodDisruptionBudget"} <= set(objects)
    assert ("HorizontalPodAutoscaler" in objects) is bool(values)
    for each in objects.values():
        validate.validate(each, "1.30", strict=True)


def test_helm_finds_no_fault() -> None:
    chart = pytest.importorskip("helm_python.chart")
    found = chart.lint(str(CHART), strict=True)
    assert found["errors"] == []
    assert {each["error"] for each in found["messages"]} <= {"icon is recommended"}


def test_the_pod_outlives_the_drain_and_runs_without_rights() -> None:
    pod = rendered({"drainSeconds": 90, "startMinutes": 2})["Deployment"]["spec"]["template"]
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] >= 90 + 5 + 15  # with the wait before SIGTERM
    assert container["startupProbe"]["failureThreshold"] * 5 == 120
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False


def test_the_flags_of_the_pod_exist() -> None:
    (container,) = rendered(ALL)["Deployment"]["spec"]["template"]["spec"]["containers"]
    words = ["--host", "0.0.0.0", *container["args"]]
    arguments = make_parser(COMMANDS["serve"]).parse_args(words)
    assert (arguments.port, arguments.drain_seconds) == (8000, 60)
    assert arguments.max_num_seqs == 8


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"modle": "x"}, {"apiKeySecret": ""}])
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    chart = pytest.importorskip("helm_python.chart")
    with pytest.raises(Exception, match=next(iter(wrong))):
        chart.Chart.load(str(CHART)).validate_schema(wrong)


# systemd


def service() -> dict[str, str]:
    """Return the settings of the service; of those given twice, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "systemd" / "octavo.service")
    return dict(parser["Service"])


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd here")
    for name in ("octavo.service", "octavo.socket"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/octavo/bin/octavo", "/bin/true"))
    units = [str(tmp_path / name) for name in ("octavo.service", "octavo.socket")]
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    security = [analyze, "security", "--offline=true", "--threshold=20", units[0]]
    subprocess.run(security, capture_output=True, check=True)  # 2.0 of 10 at most


def test_the_units_agree_with_the_server() -> None:
    found = service()
    words = shlex.split(found["ExecStart"])
    arguments = make_parser(COMMANDS["serve"]).parse_args(words[4:])
    socket = (DEPLOY / "systemd" / "octavo.socket").read_text()
    assert f"ListenStream={arguments.host}:{arguments.port}\n" in socket
    assert found["Type"] == "notify"
    assert int(found["TimeoutStopSec"]) > ServerSettings().drain_seconds
    assert found["RestartPreventExitStatus"] == "2 3"


# the image


def test_the_dockerfiles_serve_as_the_image_is_meant() -> None:
    for name in ("Dockerfile", "Dockerfile.cuda"):
        text = (DEPLOY / "docker" / name).read_text()
        last = text.rpartition("\nFROM ")[2]
        assert "\nUSER 10001:10001\n" in last
        (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", last, re.MULTILINE)
        words = yaml.safe_load(entry)
        make_parser(COMMANDS["serve"]).parse_args([*words[2:], "smollm2"])
        for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
            assert all((DEPLOY.parent / each).exists() for each in copied.split())


def test_compose_names_files_and_flags_that_exist() -> None:
    whole = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    octavo = whole["services"]["octavo"]
    make_parser(COMMANDS["serve"]).parse_args(octavo["command"])
    assert int(octavo["stop_grace_period"].removesuffix("s")) > ServerSettings().drain_seconds
    for each in whole["services"].values():
        for volume in each.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in whole["volumes"] or (DEPLOY / "docker" / source).exists()


def test_the_images_part_is_small_and_serves_without_rights(tmp_path: Path) -> None:
    """A user without any rights serves a model from it, and can write nowhere but in its cache."""
    interpreter = public_python()
    if os.geteuid() != 0 or interpreter is None:
        pytest.skip("only root can be another user, who needs a Python that all may run")
    place = tmp_path / "image"
    python = make_root(place, interpreter)
    # smollm2, the image's model, is fetched with it.
    subprocess.run([str(python), "-I", "-c", "import pip"], check=True)
    packed = packed_size_of(place, tmp_path / "image.tar.gz")
    print(f"{size_of(place) / 1e6:.0f} MB in files, {packed / 1e6:.0f} MB packed")
    assert packed <= MOST_PACKED_BYTES
    model, cache = tmp_path / "model", tmp_path / "cache"
    for each in (model, cache):
        each.mkdir()
    make_model(model)
    for each in model.iterdir():
        each.chmod(0o644)
    os.chown(cache, NOBODY, NOBODY)
    for parent in (model, *model.parents):
        if parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(parent.stat().st_mode | 0o055)  # pytest's directories are its user's
    command = [str(python), "-m", "octavo", "serve", str(model), "--port", "0"]
    server = subprocess.Popen(
        ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={cache}", f"OCTAVO_CACHE={cache}", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
    )
    assert server.stdout is not None
    try:
        assert any(" at http://" in line for line in server.stdout)
        server.terminate()
        assert server.wait(300) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
