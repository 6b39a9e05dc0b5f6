"""torch.sim and torch.accelerator: devices, streams, events, random numbers, memory."""

import pickle

import pytest
import torch

from swapline import sim


def test_devices():
    assert torch.sim.is_available() and torch.sim.is_initialized() and torch.sim._initialized
    assert torch.sim.device_count() == torch.accelerator.device_count() == 8
    assert torch.accelerator.current_accelerator().type == "sim"
    torch.sim.init()
    assert torch.sim.current_device() == 0
    with torch.sim.device(3):
        assert torch.sim.current_device() == torch.accelerator.current_device_index() == 3
        assert torch.ones(2, device="sim").device == torch.device("sim", 3)
        with torch.sim.device("sim:1"):
            assert torch.sim.current_device() == 1
        with torch.sim.device(None):
            assert torch.sim.current_device() == 3
    torch.sim.set_device("sim:2")
    assert torch.sim.current_device() == 2
    torch.sim.set_device(0)
    with pytest.raises(ValueError, match="no device sim:8; there are sim:0 to sim:7"):
        torch.sim.set_device(8)
    properties = torch.sim.get_device_properties(1)
    assert properties.name == torch.sim.get_device_name() == "tiny"
    assert properties.total_memory == sim.memory(1)["capacity_bytes"]
    assert torch.sim.get_device_capability() == (properties.major, properties.minor)
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.sim.can_device_access_peer(0, 1)
    assert torch.ones(1, device="sim").is_sim and torch.ones(1).sim(2).device.index == 2
    assert torch.get_device_module("sim") is torch.sim


def test_streams_are_those_of_torch():
    side = torch.sim.Stream(priority=-1)
    assert isinstance(side, torch.Stream) and side.device.type == "sim"
    main = torch.sim.current_stream()
    assert main == torch.sim.default_stream() and main != side
    with torch.sim.stream(side):
        assert torch.sim.current_stream() == side
        with torch.sim.stream(None):
            assert torch.sim.current_stream() == side
    other = torch.sim.Stream(device="sim:2")
    with torch.sim.stream(other):
        assert torch.sim.current_device() == 2
        assert torch.sim.current_stream() == other == torch.sim.current_stream("sim:2")
        assert torch.sim.current_stream(0) == main
    assert torch.sim.current_device() == 0 and torch.sim.current_stream() == main
    torch.sim.set_stream(side)
    assert torch.accelerator.current_stream() == side
    torch.sim.set_stream(main)


def test_streams_order_and_events_measure():
    side = torch.sim.Stream()
    x = torch.ones(1 << 20, device="sim")
    side.wait_stream(torch.sim.current_stream())
    begin = torch.sim.Event(enable_timing=True)
    end = torch.sim.Event(enable_timing=True)
    with torch.sim.stream(side):
        begin.record()
        x.mul_(2)
        end.record()
    torch.sim.current_stream().wait_event(end)
    assert not end.query()  # at the host's time
    assert x.sum().item() == 2 << 20
    assert end.query() and side.query()
    spec = sim.options()["spec"]
    expected_ms = 8 * (1 << 20) / spec["memory_bytes_per_s"] * 1e3 + spec["launch_latency"] / 1e6
    assert begin.elapsed_time(end) == pytest.approx(expected_ms, rel=0.01)
    x.record_stream(side)
    end.synchronize()
    side.synchronize()
    torch.sim.synchronize("sim:1")


def test_random_numbers_repeat():
    torch.manual_seed(7)
    first = torch.rand(8, device="sim")
    on_second = torch.rand(8, device="sim:1")
    torch.manual_seed(7)
    assert torch.equal(torch.rand(8, device="sim"), first)
    assert torch.equal(torch.rand(8, device="sim:1"), on_second)
    torch.sim.manual_seed(7)
    state = torch.sim.get_rng_state()
    assert state.numel() == 16 and state.device.type == "cpu"
    assert torch.equal(torch.rand(8, device="sim"), first)
    torch.sim.set_rng_state(state)
    assert torch.equal(torch.rand(8, device="sim"), first)
    states = torch.sim.get_rng_state_all()
    torch.sim.manual_seed_all(3)
    assert torch.sim.initial_seed() == 3
    torch.sim.set_rng_state_all(states)
    assert torch.equal(torch.sim.get_rng_state(5), states[5])
    torch.sim.seed_all()
    assert torch.sim.default_generators[4].initial_seed() == torch.sim.initial_seed()
    torch.sim.seed()
    generator = torch.Generator("sim").manual_seed(7)
    assert torch.equal(torch.rand(8, device="sim", generator=generator), first)
    with torch.random.fork_rng(devices=[0], device_type="sim"):
        torch.sim.manual_seed(1)
    assert not torch.sim._is_in_bad_fork()
    torch.manual_seed(0)


def test_memory_under_the_names_of_cuda():
    with sim.settings(capacity="64MiB"):
        x = torch.empty(1 << 20, device="sim")
        y = torch.empty(1 << 20, device="sim")
        del y
        assert torch.sim.memory_allocated() == torch.accelerator.memory_allocated() == 4 << 20
        assert torch.sim.max_memory_allocated("sim:0") == 8 << 20
        assert torch.sim.memory_reserved() == torch.sim.max_memory_reserved() >= 8 << 20
        stats = torch.sim.memory_stats()
        assert stats["active_bytes.all.peak"] == stats["allocated_bytes.all.peak"] == 8 << 20
        assert stats["reserved_bytes.all.peak"] == torch.sim.max_memory_reserved()
        assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
        torch.sim.reset_peak_memory_stats()
        assert torch.sim.max_memory_allocated() == 4 << 20
        free, total = torch.sim.mem_get_info()
        assert total == 64 << 20 and free == total - torch.sim.memory_reserved()
        with pytest.raises(torch.OutOfMemoryError, match="used 4.00 MiB.*capacity 64.00 MiB"):
            torch.empty(1 << 26, device="sim")
        stats = torch.sim.memory_stats()
        assert stats["num_ooms"] == 1 and stats["num_alloc_retries"] == 1
        x = None
        torch.sim.empty_cache()
        assert torch.sim.memory_reserved() == 0
        torch.sim.reset_accumulated_memory_stats()
        assert x is None


def test_the_module_pickles_by_name():
    assert pickle.loads(pickle.dumps(torch.sim.get_device_properties)) is (
        torch.sim.get_device_properties
    )
