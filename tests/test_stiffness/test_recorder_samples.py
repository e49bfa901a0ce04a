"""Samples of recorded passes: parts, windows, regions, zeros."""

import gc

import numpy as np
import pytest
import torch
import torch.nn as nn

from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    Residual,
    no_hooks,
    ready,
    recorded,
)
from tests.test_stiffness.test_recorder_passes import (
    Failing,
    Skipping,
)
from tests.utils import perturb


class Twice(nn.Module):
    """Test-time augmentation inside a model."""

    def __init__(self):
        super().__init__()
        self.net = Skipping(range(3))

    def forward(self, x):
        return self.net(x) + self.net(x.flip(3))


def test_a_network_that_runs_twice_has_no_trajectory():
    with (TrajectoryRecorder(Twice()) as recorder,
          pytest.raises(RuntimeError, match='ran several times in one')):
        recorder.model(torch.randn(2, 8, 5, 5))


class Catching(nn.Module):
    """Goes on where a branch raises."""

    def __init__(self, broken):
        super().__init__()
        self.broken, self.net = broken, Skipping(range(3))

    def forward(self, x):
        try:
            self.broken(x)
        except RuntimeError:
            pass
        return self.net(x)


@pytest.mark.filterwarnings('error:module forward hook')
@pytest.mark.parametrize('broken', [
    nn.Conv2d(3, 3, 3), nn.Sequential(nn.Conv2d(3, 3, 3))])
def test_a_branch_that_raises_and_is_caught(broken):
    x = torch.randn(2, 8, 5, 5)
    model = Catching(broken)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for _ in range(2):
            model(x)
    with TrajectoryRecorder(model.net) as alone, torch.no_grad():
        model.net(x)
    assert torch.equal(recorder.nsi[:2], alone.nsi)
    assert len(recorder) == 4 and no_hooks(model)


class Windows(nn.Module):
    """The second stage sees quarters of images, as so many samples."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))
        self.window = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))

    def forward(self, x):
        x = self.image(x)
        n, c, h, w = x.shape
        x = x.view(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 1, 3, 5)
        return self.window(x.reshape(n * 4, c, h // 2, w // 2))


def test_windows_are_counted_back_to_their_images():
    model = Windows().eval()
    x = torch.randn(2, 8, 8, 8)
    recorder = recorded(model, x)
    assert recorder.blocks == ['image.1', 'window.1']
    assert recorder.nsi.shape == (2, 2)
    kept = []
    block = model.window[1]
    block.register_forward_pre_hook(lambda m, args: kept.append(args[0]))
    with torch.no_grad():
        model(x)
        state = kept[0].view(2, -1).double().norm(dim=1)
        f = block.branch(kept[0]).reshape(2, -1).double().norm(dim=1)
    torch.testing.assert_close(
        recorder.nsi[:, 1].double(), f / state, rtol=1e-6, atol=0)


class Regions(Windows):
    """The second stage sees another number of regions in each image."""

    def forward(self, x):
        return self.window(self.image(x)[[0, 0, 1]])


def test_different_numbers_of_samples_are_refused():
    model = Regions().eval()
    with TrajectoryRecorder(model), torch.no_grad():
        with pytest.raises(RuntimeError, match='image.1 2, window.1 3'):
            model(torch.randn(2, 8, 8, 8))


def test_nan_features_and_states_of_norm_zero():
    model = ready(StepResNetCIFAR(20))
    images = IMAGES.clone()
    images[1, 0, 0, 0] = np.nan
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES[:1])
        with pytest.raises(ValueError,
                           match='sample 2 at block layer1.1 has NaN'):
            model(images)
    assert len(recorder) == 1

    model = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))
    with TrajectoryRecorder(model, Residual) as recorder, torch.no_grad():
        for block in model:
            block.first.bias.zero_()
            block.second.bias.zero_()
        model(torch.zeros(2, 8, 5, 5))
        assert (recorder.nsi == 0).all()
        model[1].second.bias.fill_(1)
        with pytest.raises(ValueError, match='state of norm 0 that changes'):
            model(torch.zeros(2, 8, 5, 5))


def test_features_are_not_kept():
    def maps():
        gc.collect()
        return [t for t in gc.get_objects() if type(t) is torch.Tensor
                and t.dim() == 4 and t.shape[0] == 3]

    model = ready(StepResNetCIFAR(20))
    before = {id(t) for t in maps()}  # other tests may have left some
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for _ in range(3):
            model(IMAGES)
        alive = [t for t in maps() if id(t) not in before]
    assert not alive
    # Six float32 numbers a sample and block.
    stored = sum(part.untyped_storage().nbytes() for part in recorder._parts)
    assert stored == 9 * 6 * 6 * 4


def test_recording_one_pass():
    model = Failing(perturb(StepResNetCIFAR(20))).eval()
    recorder = TrajectoryRecorder(model)
    recorder.start(once=True)
    assert not no_hooks(model)
    with torch.no_grad():
        model(IMAGES[:2])
        assert no_hooks(model) and len(recorder) == 2
        model(IMAGES)
        for fail_at in range(4):
            model.fail_at = fail_at
            recorder.start(once=True)
            with pytest.raises(KeyError):
                model(IMAGES)
            assert no_hooks(model) and len(recorder) == 2
        model.fail_at = None
        recorder.start()  # and now all
        model(IMAGES[:1])
        model(IMAGES[2:])
        recorder.stop()
    assert len(recorder) == 4
    clean = recorded(model)
    torch.testing.assert_close(
        recorder.nsi, clean.nsi[[0, 1, 0, 2]], rtol=1e-5, atol=0)


def test_one_frozen_value():
    model = ready(StepResNetCIFAR(20))
    recorder = recorded(model)
    found = recorder.trajectories(split='val', epoch=3)
    for name, value in recorder.record.items():
        np.testing.assert_array_equal(getattr(found, name), value)
    assert found.blocks == recorder.blocks
    assert found.excluded == recorder.excluded
    assert found.settings == dict(
        model='StepResNetCIFAR', split='val', reading='adaptive',
        dataset_size=3, epoch=3)


def test_start_twice_stop_twice_and_continue():
    model = ready(StepResNetCIFAR(20))
    recorder = TrajectoryRecorder(model)
    recorder.start()
    with pytest.raises(RuntimeError, match='started already'):
        recorder.start()
    with torch.no_grad():
        model(IMAGES[:1])
        recorder.stop()
        recorder.stop()
        model(IMAGES)
        with recorder:
            model(IMAGES[1:])
    assert len(recorder) == 3
    recorder.clear()
    assert len(recorder) == 0
