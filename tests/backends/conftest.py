"""One suite for every device: pytest tests/backends --device sim|npu|cuda.

Each test runs in every schedule of the device, and may leave no race behind.
"""

import gc

import pytest
import torch
from device import KINDS, Device, LoggedDevice, make_device
from warm_step import WarmSteps


def pytest_addoption(parser):
    parser.addoption("--device", choices=KINDS, default="sim", help="what the tests run on")


def pytest_configure(config):
    config.addinivalue_line("markers", "devices(*kinds): runs on these only; says why")
    config.addinivalue_line("markers", "any_schedule: one schedule tells all")
    config.device = make_device(config.getoption("--device"))
    config.warm_steps = WarmSteps(config.device)
    gc.collect()
    gc.freeze()  # what was imported: collecting between tests takes no time then


def pytest_generate_tests(metafunc):
    if "schedule" in metafunc.fixturenames:
        schedules = metafunc.config.device.schedules
        if metafunc.definition.get_closest_marker("any_schedule"):
            schedules = schedules[-1:]
        metafunc.parametrize("schedule", schedules, indirect=True)


@pytest.fixture
def schedule(request):
    return request.param


@pytest.fixture(autouse=True)
def device(request, schedule) -> Device:
    """The device in one schedule; afterwards without work, and without a race."""
    device = request.config.device
    marker = request.node.get_closest_marker("devices")
    if marker and device.kind not in marker.args:
        pytest.skip(f"not on {device}: {marker.kwargs['why']}")
    gc.collect()
    device.synchronize()
    device.use(schedule)
    device.clear_races()
    yield device
    gc.collect()
    device.synchronize()
    races = device.races()
    device.clear_races()
    assert not races, f"{len(races)} races in schedule {schedule}; {races[0]}"


@pytest.fixture
def logged(device) -> LoggedDevice:
    if not device.has_log:
        pytest.skip(f"a real {device} does not tell what was asked of it")
    return device


@pytest.fixture
def same_with_swap(request, device):
    """same_with_swap(run): warm_step.WarmSteps.compare, kept for the table at the end."""

    def compare(run, **options):
        request.config.warm_steps.compare(run, test=request.node, **options)

    return compare


def pytest_terminal_summary(terminalreporter, config):
    if not config.warm_steps.rows:
        return
    terminalreporter.section(f"{config.device}, torch {torch.__version__}")
    for line in config.warm_steps.table():
        terminalreporter.write_line(line)
