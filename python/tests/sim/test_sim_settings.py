"""Settings, faults, figures and the trace of the simulated machine."""

import json
import subprocess
import sys

import pytest
import torch

import swapline
from swapline import sim
from swapline.sim.settings import size_in_bytes


@pytest.mark.parametrize(
    "text, expected",
    [(0, 0), ("512", 512), ("96MiB", 96 << 20), ("1.5 GiB", 3 << 29), ("4GB", 4_000_000_000)],
)
def test_sizes(text, expected):
    assert size_in_bytes(text) == expected


@pytest.mark.parametrize("text", [-1, 1.5, True, "12 parsec", "MiB", "-3MiB", None])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size.*MiB"):
        size_in_bytes(text)


def test_settings_hold_inside_and_come_back():
    before = sim.options()
    with sim.settings("h100-sxm", capacity="96MiB", h2d_bytes_per_s=1e9, late_copies=True):
        inside = sim.options()
        assert inside["capacity_bytes"] == sim.memory()["capacity_bytes"] == 96 << 20
        assert inside["spec"]["name"] == torch.sim.get_device_name() == "h100-sxm"
        assert inside["spec"]["h2d_bytes_per_s"] == 1e9
        assert inside["late_copies"]
        with sim.settings(capacity="1MiB"):
            assert sim.options()["spec"]["name"] == "tiny"
        assert sim.options() == inside
    assert sim.options() == before


def test_settings_come_back_after_an_error():
    sim.configure()
    before = sim.options()
    with pytest.raises(InterruptedError), sim.settings(capacity="1MiB"):
        raise InterruptedError
    assert sim.options() == before
    held = []

    def fail_holding_a_tensor():
        with sim.settings(capacity="4MiB"):
            held.append(torch.ones(4, device="sim"))
            raise InterruptedError

    with (
        pytest.warns(UserWarning, match="did not come back.*512 bytes"),
        pytest.raises(InterruptedError),
    ):
        fail_holding_a_tensor()
    held.clear()
    sim.configure()
    assert sim.options() == before


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"preset": "abacus"}, ValueError, "abacus.*ascend-910b"),
        ({"late_copy": True}, TypeError, "late_copy.*late_copies.*h2d_bytes_per_s"),
        ({"h2d_bytes_per_s": 0}, ValueError, "h2d_bytes_per_s is 0: allowed are numbers above 0"),
        ({"copy_latency": -1}, ValueError, "copy_latency is -1: allowed are numbers 0 and above"),
        ({"capacity": 0}, ValueError, "capacity is 0"),
        ({"capacity": "a lot"}, ValueError, "a lot"),
        ({"faults": {"fail_coffee": 1}}, TypeError, "fail_coffee.*fail_copy"),
        ({"faults": {"fail_copy": -2}}, ValueError, "fail_copy is -2"),
        ({"faults": {"copy_slowdown": 0}}, ValueError, "copy_slowdown"),
    ],
)
def test_what_is_not_allowed_changes_nothing(options, error, message):
    before = sim.options()
    with pytest.raises(error, match=message):
        sim.configure(**options)
    assert sim.options() == before


def test_the_machine_is_not_replaced_under_live_tensors():
    tensor = torch.ones(1000, device="sim")
    with pytest.raises(RuntimeError, match="4096 bytes of device or pinned memory are still held"):
        sim.configure("h100-sxm")
    assert tensor.sum().item() == 1000
    del tensor
    # A cycle of references is no owner.
    cycle = [torch.ones(4, device="sim")]
    cycle.append(cycle)
    del cycle
    sim.configure()


def test_faults_come_and_go():
    x = torch.ones(4)
    with sim.faults(fail_copy=1):
        on_device = x.to("sim")
        with pytest.raises(RuntimeError, match="copy.*injected fault"):
            on_device.cpu()
        assert torch.equal(on_device.cpu(), x)
    with (
        sim.faults(fail_pinned_allocation=0),
        sim.faults(fail_device_allocation=0),
        pytest.raises(torch.OutOfMemoryError, match="injected fault"),
    ):
        torch.ones(4, device="sim")
    with sim.faults(fail_pinned_allocation=0), pytest.raises(RuntimeError, match="cannot pin"):
        x.pin_memory()
    with sim.faults(fail_launch=0), pytest.raises(RuntimeError, match="injected fault"):
        on_device.add_(1)
    assert on_device.add_(1).tolist() == [2.0] * 4


def test_slow_copies_take_longer():
    x = torch.ones(1 << 20)

    def took():
        before = sim.time_ms()
        x.to("sim")
        return sim.time_ms() - before

    took()
    plain = took()
    with sim.faults(copy_slowdown=3):
        assert took() > 2.5 * plain
    assert took() == pytest.approx(plain)


def test_figures_of_copies_and_memory():
    with sim.settings(capacity="64MiB"):
        x = torch.zeros(1 << 20, device="sim")
        sim.set_memory_kind(x, "parameters")
        host = x.cpu()
        x.copy_(host)
        figures = sim.counters()
        assert (figures["num_copies_in"], figures["num_copies_out"]) == (1, 1)
        assert figures["bytes_in"] == figures["bytes_out"] == 4 << 20
        assert sim.memory("sim")["bytes_by_kind"]["parameters"] == 4 << 20
        assert sim.memory(1)["allocated_bytes"] == 0
        y = torch.zeros(1 << 20, device="sim")
        del y
        assert sim.memory()["peak_allocated_bytes"] == 8 << 20
        sim.reset_peak_memory()
        assert sim.memory()["peak_allocated_bytes"] == 4 << 20
        sim.take_away(30 << 20)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(17 << 18, device="sim")
        sim.take_away(0)
        torch.zeros(17 << 18, device="sim")
        before = sim.time_ms()
        sim.advance_host_ms(2.5)
        assert sim.time_ms() - before == 2.5
        with pytest.raises(ValueError, match="no kind 'snacks'.*layer_inputs"):
            sim.set_memory_kind(x, "snacks")
        for wrong in (8, "sim:9", "cpu"):
            with pytest.raises(ValueError, match="sim:"):
                sim.memory(wrong)
        pinned = torch.zeros(1 << 20).pin_memory()
        assert sim.pinned_memory()["allocated_bytes"] >= 4 << 20
        del x, pinned


def test_a_missing_wait_is_reported():
    side = torch.sim.Stream()
    x = torch.ones(1 << 16, device="sim")
    with torch.sim.stream(side):
        x.mul_(2)
    assert sim.num_races() == 1
    (report,) = sim.races()
    assert "mul_" in report and "stream" in report
    sim.clear_races()
    assert sim.num_races() == 0 and sim.races() == []
    torch.sim.synchronize()


def test_late_copies_show_a_missing_wait_in_the_numbers():
    with sim.settings(late_copies=True):
        host = torch.ones(1 << 10).pin_memory()
        side = torch.sim.Stream()
        with torch.sim.stream(side):
            x = host.to("sim", non_blocking=True)
        wrong = x.sum()
        assert sim.num_races() > 0 and wrong.isnan().item()
        torch.sim.current_stream().wait_stream(side)
        assert x.sum().item() == 1 << 10
        torch.sim.synchronize()
        sim.clear_races()
        del x, host, wrong


def test_trace(tmp_path):
    with pytest.raises(RuntimeError, match="trace=True"):
        sim.trace(tmp_path / "none.json")
    with sim.settings(trace=True):
        side = torch.sim.Stream()
        sim.name_stream(side, "beside")
        x = torch.ones(1 << 16).to("sim")
        side.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(side):
            y = x * 2
        torch.sim.current_stream().wait_stream(side)
        y.cpu()
        path = tmp_path / "run.json"
        sim.trace(path)
        events = json.loads(path.read_text())["traceEvents"]
        lanes = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        assert {"host", "beside", "H2D", "D2H"} <= lanes
        spans = {e["name"]: e for e in events if e["ph"] == "X"}
        assert spans["aten::mul"]["ts"] >= spans["copy in"]["ts"] + spans["copy in"]["dur"]
        assert any(e["ph"] == "C" and e["name"] == "memory" for e in events)
        sim.clear_trace()
        sim.trace(path)
        assert not any(e["ph"] == "X" for e in json.loads(path.read_text())["traceEvents"])
        del x, y


def test_dry_run_has_time_and_bytes_but_no_numbers():
    with sim.settings("ascend-910b", dry_run=True):
        layer = torch.nn.Linear(1 << 15, 1 << 15, device="sim", dtype=torch.bfloat16)
        out = layer(torch.empty(1 << 10, 1 << 15, device="sim", dtype=torch.bfloat16))
        out.sum().backward()
        assert layer.weight.grad.shape == layer.weight.shape
        assert sim.memory()["peak_allocated_bytes"] > 2 * 2 << 30
        flops = 2 * (1 << 10) * (1 << 30)
        assert sim.time_ms() > 2 * flops / (376e12 * 0.6) * 1e3
        assert out.float().mean().item() == 0
        del layer, out


def test_same_program_same_time():
    def train():
        model = torch.nn.Linear(32, 32).to("sim")
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for _ in range(3):
            model(torch.ones(4, 32, device="sim")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def run():
        with sim.settings():
            train()
            return sim.time_ms(), sim.memory()["peak_allocated_bytes"]

    assert run() == run()


def test_context_accounts_memory_by_kind():
    context = swapline.SwapContext(torch.device("sim", 0), like=sim.context_options())
    assert context.device == torch.device("sim", 0)


def test_loaded_after_a_backward_is_a_clear_error():
    code = "import torch\ntorch.ones(1, requires_grad=True).sum().backward()\nimport swapline.sim\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "loaded too late" in done.stderr and "before any backward" in done.stderr


def test_in_a_dry_run_this_machines_memory_is_no_limit():
    with sim.settings("h200-sxm", dry_run=True, capacity="1TiB"):
        weight = torch.empty(64 << 30, dtype=torch.bfloat16, device="sim")
        context = swapline.SwapContext("sim", like=sim.context_options())
        optimizer = swapline.optim.AdamW([weight], context=context)
        weight.grad = torch.empty_like(weight)
        optimizer.step()
        assert context.host_stats()["pinned_bytes"] >= 256 << 30
        assert sim.counters()["bytes_in"] == 256 << 30
        del optimizer, context, weight
