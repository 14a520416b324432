"""The manifests of deploy/kubernetes/base name settings, flags and ports of the code; tests/release checks all of them
as kustomize builds them."""

from pathlib import Path
from typing import Any

import yaml

from recallflow.cli.commands import commands
from recallflow.cli.flags import FLAGS
from recallflow.flows.config import RawSetting, read_config

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"
POD = "recallflow-0"


def test_base_manifest_names_settings_of_the_code() -> None:
    pod: Any = yaml.safe_load((BASE / "stateful-set.yaml").read_text())["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    given = vars(commands().parse_args([word.replace("$(POD_NAME)", POD) for word in engine["args"]]))
    flags = {key: RawSetting(flag.name, given[key]) for key, flag in FLAGS.items() if given.get(key) is not None}
    variables = {one["name"]: str(one.get("value", POD)) for one in engine["env"]}
    assert Path(variables.pop("RECALLFLOW_CONFIG")).name == "recallflow.toml"
    chosen, _ = read_config(flags, variables, BASE / "recallflow.toml")
    assert chosen.run.instance_id == POD
    assert [one["containerPort"] for one in engine["ports"]] == [chosen.run.metrics_port]
    assert chosen.named_state_dir().parent in {Path(one["mountPath"]) for one in engine["volumeMounts"]}
    assert pod["securityContext"]["runAsNonRoot"]
