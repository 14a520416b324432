"""deploy/kubernetes is what Kubernetes, KEDA and the Prometheus operator take, and what the code expects; checked
without a cluster."""

import functools
import json
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry

from recallflow.cli.commands import commands
from recallflow.cli.flags import FLAGS
from recallflow.connectors.probes import Probes
from recallflow.flows.config import LIBRDKAFKA, VARIABLES, Config, RawSetting, is_secret, read_config
from recallflow.flows.router import deployment_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.31"
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.0.3"  # the newest that Debian 12's Go can build
BASE, EXAMPLE = "base", "overlays/example"
# Custom resources → the Go module that has their schemas, and where in it.
MODULES = {
    "keda.sh": ("github.com/kedacore/keda/v2@v2.17.2", "config/crd/bases"),
    "monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd",
    ),
}  # fmt: skip
POD = "recallflow-0"

Object = dict[str, Any]

# Kustomize and the schemas of custom resources are Go modules, fetched from their proxy.
pytestmark = [pytest.mark.index, pytest.mark.needs("go")]


@functools.cache
def _built(folder: str) -> str:
    done = go("run", KUSTOMIZE, "build", str(FOLDER / folder))
    assert [line for line in done.stderr.splitlines() if not line.startswith("go: downloading ")] == []  # warnings
    return done.stdout


def go(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["go", *words], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done


def built(folder: str) -> list[Object]:
    return [*yaml.safe_load_all(_built(folder))]


def the(kind: str, folder: str = EXAMPLE) -> Object:
    (found,) = [one for one in built(folder) if one["kind"] == kind]
    return found


def pod(folder: str) -> Object:
    spec: Object = the("StatefulSet", folder)["spec"]["template"]["spec"]
    return spec


def container(folder: str) -> Object:
    (found,) = pod(folder)["containers"]
    return dict(found)


def group(one: Object) -> str:
    return str(one["apiVersion"]).rpartition("/")[0]


def config(folder: str, tmp_path: Path) -> Config:
    engine = container(folder)
    file = tmp_path / "recallflow.toml"
    file.write_text(the("ConfigMap", folder)["data"]["recallflow.toml"])
    variables = {one["name"]: str(one.get("value", POD)) for one in engine["env"]}
    assert Path(variables.pop("RECALLFLOW_CONFIG")).name == file.name
    for source in engine["envFrom"]:
        variables |= secret(folder, source["secretRef"]["name"])
    given = vars(commands().parse_args([word.replace("$(POD_NAME)", POD) for word in engine["args"]]))
    flags = {key: RawSetting(flag.name, given[key]) for key, flag in FLAGS.items() if given.get(key) is not None}
    return read_config(flags, variables, file)[0]


def secret(folder: str, name: str) -> dict[str, str]:
    found = [one["stringData"] for one in built(folder) if one["kind"] == "Secret" and one["metadata"]["name"] == name]
    return dict(found[0]) if found else {}


@pytest.mark.parametrize("folder", [BASE, EXAMPLE])
def test_every_object_is_of_its_schema(folder: str) -> None:
    own = [one for one in built(folder) if group(one) not in MODULES]
    assert {one["kind"] for one in own} >= {"StatefulSet", "Service", "PodDisruptionBudget", "ConfigMap"}
    for one in own:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("kind", ["ScaledObject", "TriggerAuthentication", "ServiceMonitor"])
def test_custom_resources_are_of_theirs(kind: str) -> None:
    one = the(kind)
    validator = Draft202012Validator(strict(custom(group(one), kind)))
    assert [*validator.iter_errors(one)] == []
    one["spec"]["misspelt"] = 1
    assert [*validator.iter_errors(one)] != []


def custom(api_group: str, kind: str) -> Object:
    """The schema that a cluster has of a custom resource, out of the module that defines it."""
    module, folder = MODULES[api_group]
    fetched = json.loads(go("mod", "download", "-json", module).stdout)
    for file in (Path(fetched["Dir"]) / folder).glob("*.yaml"):
        definition = yaml.safe_load(file.read_text())
        if definition.get("kind") == "CustomResourceDefinition" and definition["spec"]["names"]["kind"] == kind:
            (version,) = [one for one in definition["spec"]["versions"] if one["storage"]]
            assert the(kind)["apiVersion"] == f"{api_group}/{version['name']}"
            schema: Object = version["schema"]["openAPIV3Schema"]
            return schema
    raise AssertionError(kind)


def strict(schema: Any, *, outermost: bool = True) -> Any:
    """The same, with fields that it does not name refused: a cluster would drop them without a word."""
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value, outermost=False) for key, value in schema.items() if key not in ("properties", "format")}
    if "properties" in schema:
        made["properties"] = {key: strict(value, outermost=False) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    if outermost:
        made["properties"]["metadata"] = {"type": "object"}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


@pytest.mark.parametrize("folder", [BASE, EXAMPLE])
def test_its_settings_are_ours_and_lie_where_may_be_written(folder: str, tmp_path: Path) -> None:
    chosen, engine = config(folder, tmp_path), container(folder)
    assert chosen.run.instance_id == POD
    mounts = {Path(one["mountPath"]): one for one in engine["volumeMounts"]}
    state = chosen.named_state_dir()
    assert (
        mounts[state.parent]["name"]
        == the("StatefulSet", folder)["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    )
    (variable,) = [one["value"] for one in engine["env"] if one["name"] == "RECALLFLOW_CONFIG"]
    assert mounts[Path(variable).parent]["readOnly"]
    names = {one["name"] for one in pod(folder)["volumes"]} | {mounts[state.parent]["name"]}
    assert {one["name"] for one in mounts.values()} == names
    assert [one["configMap"]["name"] for one in pod(folder)["volumes"] if "configMap" in one] == [
        the("ConfigMap", folder)["metadata"]["name"]
    ]
    assert chosen.engine.cache_bytes * 4 <= quantity(engine["resources"]["limits"]["memory"])


def quantity(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 1024**2, "Gi": 1024**3}[unit]


def test_its_secrets_are_settings_that_are_secret() -> None:
    given = secret(EXAMPLE, "recallflow")
    assert given
    for name in given:
        key = VARIABLES.get(name)
        prefix = "RECALLFLOW_" + LIBRDKAFKA.upper().replace(".", "_")
        assert is_secret(key.rpartition(".")[2] if key else name.removeprefix(prefix).lower().replace("_", "."))
    for one in built(EXAMPLE):
        if one["kind"] not in ("Secret", "TriggerAuthentication"):
            assert not any(value in json.dumps(one) for value in given.values())


@pytest.mark.parametrize("folder", [BASE, EXAMPLE])
def test_probe_paths_are_served(folder: str, tmp_path: Path) -> None:
    engine, chosen = container(folder), config(folder, tmp_path)
    (port,) = engine["ports"]
    assert (chosen.run.metrics_host, chosen.run.metrics_port) == ("0.0.0.0", port["containerPort"])
    asked = {name: engine[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {one["port"] for one in asked.values()} == {port["name"]}
    with Probes("127.0.0.1", 0, CollectorRegistry(), lambda: "starting") as probes:
        found = {name: status(probes.port, one["path"]) for name, one in asked.items()}
        assert found == {"startup": 200, "liveness": 200, "readiness": 503}
        (scraped,) = the("ServiceMonitor")["spec"]["endpoints"]
        assert status(probes.port, scraped["path"]) == 200
    (service,) = the("Service", folder)["spec"]["ports"]
    assert (service["name"], service["targetPort"]) == (scraped["port"], port["name"])


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_selectors_find_the_pods() -> None:
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    policy, monitor = the("NetworkPolicy")["spec"], the("ServiceMonitor")["spec"]
    selectors = [
        the("StatefulSet")["spec"]["selector"]["matchLabels"], the("Service")["spec"]["selector"],
        the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], policy["podSelector"]["matchLabels"],
    ]  # fmt: skip
    assert [labels] * len(selectors) == selectors
    assert monitor["selector"]["matchLabels"].items() <= the("Service")["metadata"]["labels"].items()
    rules = (ROOT / "docs" / "monitoring" / "alerts.yml").read_text()
    assert f'job="{the("Service")["metadata"]["labels"][monitor["jobLabel"]]}"' in rules
    assert the("StatefulSet")["spec"]["serviceName"] == the("Service")["metadata"]["name"]


def test_members_are_scaled_by_the_lag_of_their_deployment(tmp_path: Path) -> None:
    chosen, scaled = config(EXAMPLE, tmp_path), the("ScaledObject")["spec"]
    (kafka,) = scaled["triggers"]
    assert kafka["metadata"]["consumerGroup"] == deployment_name(chosen, chosen.topics.memory)
    assert kafka["metadata"]["topic"] == chosen.topics.memory
    assert kafka["metadata"]["bootstrapServers"] == chosen.kafka.bootstrap_servers
    assert kafka["authenticationRef"]["name"] == the("TriggerAuthentication")["metadata"]["name"]
    for one in the("TriggerAuthentication")["spec"]["secretTargetRef"]:
        assert one["key"] in secret(EXAMPLE, one["name"])
    partitions = int(commands().parse_args(["topics", "create"]).partitions)
    assert scaled["minReplicaCount"] < scaled["maxReplicaCount"] <= partitions
    target = the("StatefulSet")
    assert scaled["scaleTargetRef"] == {
        "apiVersion": target["apiVersion"], "kind": target["kind"], "name": target["metadata"]["name"],
    }  # fmt: skip
    assert "replicas" not in target["spec"]  # an apply would set them back
    assert the("StatefulSet", BASE)["spec"]["replicas"] <= partitions


def test_nothing_runs_as_root_or_writes_beside_its_volumes() -> None:
    spec, engine = pod(BASE), container(BASE)
    (user,) = re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    security = spec["securityContext"]
    assert security["runAsNonRoot"]
    assert {security["runAsUser"], security["runAsGroup"], security["fsGroup"]} == {int(user)}
    assert engine["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["automountServiceAccountToken"] is False
