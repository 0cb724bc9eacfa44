"""The interface that frameworks call by the name `mindio_ttp`: names, places, parameters, numbers;
and what it does in a process that taskd's agent has not started."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

from taskd.adaptor.mindio import controller, controller_ttp, enums, framework_ttp, frameworks
from taskd.adaptor.mindio.framework_ttp import ttp_decorator

PACKAGE = "taskd.adaptor.mindio"
ROOT = Path(__file__).parents[2]
HANDLERS = (
    *("save_ckpt", "rename", "exit", "stop", "clean", "rebuild_group", "repair", "rollback"),
    *("stream_sync", "zit_downgrade_rebuild", "zit_upgrade_rebuild", "zit_upgrade_repair"),
    "zit_upgrade_rollback",
)
# what the real package has, and what MindSpeed-LLM imports from it
NAMES = json.loads((Path(__file__).parent / "mindio_ttp_names.json").read_text())
MODULES = {name.removeprefix("mindio_ttp."): found for name, found in NAMES["modules"].items()}
# documented, and imported from elsewhere in the real package
DOCUMENTED = {
    "tft_set_dp_group_info": "rank, dp_rank_list",
    "tft_register_mindx_callback": "action, func",
    "tft_notify_controller_stop_train": "fault_ranks, stop_type='stop', timeout=None",
    "tft_notify_controller_on_global_rank": "fault_ranks, time=1",
    "tft_notify_controller_change_strategy": "strategy, params=''",
    "tft_notify_controller_prepare_action": "action, fault_ranks=None",
    "tft_notify_controller_dump": "",
}
ENUMS: dict[str, list[str]] = {  # the numbers count from 0
    "OptimizerType": ["ATTENTION", "MOE"],
    "Action": ["RETRY", "EXIT"],
    "ReportState": [
        *("RS_NORMAL", "RS_RETRY", "RS_UCE", "RS_UCE_CORRUPTED", "RS_HCCL_FAILED"),
        *("RS_INIT_FINISH", "RS_PREREPAIR_FINISH", "RS_STEP_FINISH", "RS_UNKNOWN"),
    ],
    "RepairType": [
        *("RT_SEND", "RT_UCE_HIGHLEVEL", "RT_UCE_LOWLEVEL", "RT_RECV_REPAIR", "RT_ROLLBACK"),
        *("RT_LOAD_CKPT", "RT_LOAD_REBUILD"),
    ],
}
# What the frameworks import. MindSpore: 29 of framework_ttp, and 5 of controller_ttp.
MINDSPORE = {
    "framework_ttp": (
        *("tft_init_controller", "tft_start_controller", "tft_destroy_controller"),
        *("tft_init_processor", "tft_start_processor", "tft_destroy_processor"),
        *("tft_is_reboot_node", "tft_get_reboot_type", "tft_set_step_args"),
        *("tft_set_optimizer_replica", "tft_end_updating_os", "tft_pause_train"),
        *("tft_reset_limit_step", "tft_report_error", "tft_wait_next_action"),
        *("tft_get_repair_step", "tft_get_repair_type", "tft_can_do_uce_repair"),
        *("tft_register_save_ckpt_handler", "tft_register_rename_handler"),
        *("tft_register_exit_handler", "tft_register_stop_handler"),
        *("tft_register_clean_handler", "tft_register_repair_handler"),
        *("tft_register_rebuild_group_handler", "tft_register_stream_sync_handler"),
        *("ReportState", "Action", "RepairType"),
    ),
    "controller_ttp": (
        *("tft_register_mindx_callback", "tft_notify_controller_stop_train"),
        *("tft_notify_controller_prepare_action", "tft_notify_controller_on_global_rank"),
        "tft_notify_controller_change_strategy",
    ),
}


def at(place: str):
    return importlib.import_module(f"{PACKAGE}.{place}")


def written(function) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)


@pytest.mark.parametrize(("place", "name"), [(p, n) for p, found in MODULES.items() for n in found])
def test_every_name_of_the_real_package_is_there(place, name):
    expected, found = MODULES[place][name], getattr(at(place), name)
    if expected["kind"] == "function":
        parameters = inspect.signature(found).parameters.values()
        assert [p.name for p in parameters] == expected["parameters"]
        defaults = [repr(p.default) for p in parameters if p.default is not p.empty]
        assert defaults == expected["defaults"]
    elif expected["kind"] == "class":
        assert inspect.isclass(found)
        members = {m.name for m in found} if issubclass(found, Enum) else set()
        assert members == set(expected.get("members", ()))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_parameters_and_defaults(name):
    assert written(getattr(controller_ttp, name)) == DOCUMENTED[name]


@pytest.mark.parametrize("place", [p for p in MODULES if hasattr(at(p), "__all__")])
def test_what_is_exported_is_there(place):
    exported = at(place).__all__
    assert len(set(exported)) == len(exported) and all(hasattr(at(place), n) for n in exported)


@pytest.mark.parametrize("name", ["stop_callback", "SaveHandler", "zit_upgrade_repair_callback"])
def test_what_only_its_library_calls_is_refused(name):
    with pytest.raises(NotImplementedError, match=f"{name}: mindio_ttp's own library calls this"):
        getattr(ttp_decorator, name)()
    with pytest.raises(AttributeError, match="'another'"):
        ttp_decorator.another


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_names_and_numbers(name):
    found = getattr(framework_ttp, name)
    assert issubclass(found, Enum)
    assert {m.name: m.value for m in found} == {n: i for i, n in enumerate(ENUMS[name])}


@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place, names in MINDSPORE.items() for name in names]
    + [
        (place.removeprefix("mindio_ttp."), name)
        for place, names in NAMES["used_by_mindspeed_llm"].items()
        for name in names
    ],
)
def test_frameworks_find_what_they_import(place, name):
    assert callable(getattr(at(place), name))


def test_the_same_function_under_its_other_names():
    for name in ("tft_init_controller", "tft_start_controller", "tft_destroy_controller"):
        assert getattr(controller_ttp, name) is getattr(framework_ttp, name)
    assert framework_ttp.tft_exception_handler is ttp_decorator.tft_exception_handler
    assert framework_ttp.tft_can_do_uce_repair is at("utils").tft_can_do_uce_repair


# -- a process that taskd's agent has not started --------------------------------------------------


def run(code: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
    environ.pop("LD_PRELOAD", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_importing_imports_no_framework():
    code = "import sys\n"
    code += "".join(f"import {PACKAGE}.{place}\n" for place in MODULES)
    code += "print(sorted({'torch', 'torch_npu', 'mindspore', 'numpy'} & set(sys.modules)))"
    done = run(code)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


WHOLE = f"""
from {PACKAGE} import controller_ttp, framework_ttp as tft, utils
tft.tft_init_controller(0, 2, False)
tft.tft_start_controller("127.0.0.1", 6000, False)
tft.tft_init_processor(0, 2, False, False)
tft.tft_start_processor("127.0.0.1", 6000)

def refuse(*arguments):
    raise SystemExit("a handler was called")

for name in {HANDLERS!r}:
    getattr(tft, f"tft_register_{{name}}_handler")(refuse)
tft.tft_register_decrypt_handler(refuse)
tft.tft_set_optimizer_replica(0, [dict(rank_list=[0, 1], replica_cnt=2, replica_shift=0)])
tft.tft_set_dp_group_info(0, [0, 1])
tft.tft_set_step_args([1])
calls = []

@tft.tft_exception_handler
def train(*arguments, **more):
    "Train."
    calls.append((arguments, more))
    tft.tft_start_updating_os()
    tft.tft_start_copy_os()
    tft.tft_end_updating_os(1)
    tft.tft_pause_train(1)
    if more:
        raise RuntimeError("UCE ERROR")
    return "result"

assert train(1, 2) == "result" and (train.__name__, train.__doc__) == ("train", "Train.")
try:
    train(3, fail=True)
except RuntimeError as error:
    assert str(error) == "UCE ERROR"
else:
    raise SystemExit("it was not raised")
assert calls == [((1, 2), {{}}), ((3,), {{"fail": True}})]
assert tft.tft_is_reboot_node() is False and tft.tft_get_reboot_type() == "arf"
for state in tft.ReportState:
    tft.tft_report_error(state)
    tft.tft_report_error(state.value, "507054")
assert tft.tft_wait_next_action() == tft.Action.EXIT.value
assert (tft.tft_get_repair_step(), tft.tft_get_repair_type()) == (0, "unknow")
tft.tft_reset_limit_step()
tft.tft_report_load_ckpt_step(3)
assert controller_ttp.tft_query_high_availability_switch() is False
assert controller_ttp.tft_notify_controller_dump() == 1
assert controller_ttp.tft_notify_controller_stop_train({{0: 1}}) == 1
assert controller_ttp.tft_notify_controller_on_global_rank({{0: 1}}) == 1
assert controller_ttp.tft_notify_controller_change_strategy("exit") == 1
assert controller_ttp.tft_notify_controller_prepare_action("hot switch") == 1
assert controller_ttp.tft_register_mindx_callback("report_result", refuse) == 0
tft.tft_destroy_processor()
tft.tft_destroy_controller()
print("end")
"""


def test_without_an_agent_nothing_is_done_and_one_line_says_so():
    done = run(WHOLE)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr
    told = [line for line in done.stderr.splitlines() if "not protected" in line]
    assert len(told) == 1 and told[0].startswith("taskd: ")
    # the rest says which calls of the program beside the training were refused
    rest = [line for line in done.stderr.splitlines() if line not in told]
    assert all(line.startswith("tft_notify_controller_") for line in rest), rest


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: framework_ttp.tft_init_controller(2, 2, False), ValueError),
        (lambda: framework_ttp.tft_init_controller(-2, 2, False), ValueError),
        (lambda: framework_ttp.tft_init_controller(0, 100_001, False), ValueError),
        (lambda: framework_ttp.tft_init_processor(-1, 2, False), ValueError),
        (lambda: framework_ttp.tft_init_processor(2, 2, False), ValueError),
        (lambda: framework_ttp.tft_init_processor(0, 0, False), ValueError),
        (lambda: framework_ttp.tft_init_processor(True, 2, False), ValueError),
        (lambda: framework_ttp.tft_report_error(9), ValueError),
        (lambda: framework_ttp.tft_set_optimizer_replica(0, []), ValueError),
        (lambda: framework_ttp.tft_register_decrypt_handler(None), TypeError),
        (lambda: framework_ttp.tft_register_stop_handler(None), TypeError),
    ],
)
def test_wrong_arguments_are_refused_without_an_agent_too(call, kind):
    with pytest.raises(kind):
        call()


def test_the_controller_wants_the_order_and_the_address(monkeypatch, caplog):
    monkeypatch.setattr(controller, "_made", False)
    monkeypatch.setattr(controller, "_started", False)
    with pytest.raises(SystemExit, match="2"):
        framework_ttp.tft_start_controller("127.0.0.1", 6000)
    assert "tft_init_controller first" in caplog.text
    framework_ttp.tft_init_controller(-1, 100_000, False)
    for address, port in [("0.0.0.0", 6000), ("", 6000), ("::1", 1023), ("::1", 65536)]:
        with pytest.raises(SystemExit, match="2"):
            framework_ttp.tft_start_controller(address, port)
    assert not controller.started()
    framework_ttp.tft_start_controller("::1", 65535)
    assert controller.started()
    framework_ttp.tft_destroy_controller()
    assert not controller.started()


def test_the_name_of_the_framework(monkeypatch):
    monkeypatch.setattr(frameworks, "_version", "")
    assert ttp_decorator.get_mindio_export_version() == ""
    assert frameworks.stops_before_dump({}) is False
    with pytest.raises(ValueError, match="MindSpeed-LLM"):
        framework_ttp.set_mindio_export_version("Megatron")
    for name in ("MindSpeed", "MindSpeed-LLM"):
        framework_ttp.set_mindio_export_version(name)
        assert ttp_decorator.get_mindio_export_version() == name
    assert frameworks.stops_before_dump({}) is True
    assert frameworks.stops_before_dump({"TTP_STOP_CLEAN_BEFORE_DUMP": "0"}) is False


def test_the_enums_are_those_of_the_decisions():
    """A copy would compare unequal."""
    assert all(getattr(framework_ttp, name) is getattr(enums, name) for name in ENUMS)
