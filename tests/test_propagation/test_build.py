"""Pseudo-metrics and propagation modules by name."""

import pytest
import torch

from mmstepnet.propagation import (
    PSEUDO_METRICS,
    AttentionBlock,
    Metric,
    PseudoMetric,
    build_propagation,
    build_pseudo_metric,
)


def test_a_users_pseudo_metric_serves_everything(monkeypatch):
    """By what it compares alone: on all pairs, under masks, on edges."""
    class Manhattan(PseudoMetric):

        def map_receivers(self, x):
            return self.split_heads(x)

        map_sources = map_receivers

        def compare(self, a, b):
            return (a - b).abs().sum(-1)

    monkeypatch.setitem(PSEUDO_METRICS, 'Manhattan', Manhattan)
    x = torch.randn(2, 5, 6)
    seen = torch.rand(5, 5) < 0.4
    seen.fill_diagonal_(True)
    f = torch.cdist(x, x, p=1).masked_fill(~seen, torch.inf)
    cfg = dict(type='mmstepnet.Propagation',
               pseudo_metric=dict(type='Manhattan'))
    module = build_propagation(cfg, 6)
    for mask in (seen, seen.to_sparse()):
        torch.testing.assert_close(module(x, mask=mask),
                                   torch.softmax(-f, -1) @ x)
    block = AttentionBlock(6, 2, pseudo_metric=dict(type=Manhattan))
    assert block(x, mask=seen).shape == x.shape


@pytest.mark.parametrize('build, what', [
    (build_propagation, 'propagation'),
    (build_pseudo_metric, 'pseudo_metric')])
def test_bad_configs(build, what):
    for cfg in ('Metric', None, dict(eps=1.0)):
        with pytest.raises(TypeError, match=f'{what} must be a dict with'):
            build(cfg, 4)
    with pytest.raises(KeyError, match="'Nobody' is unknown.*Metric"):
        build(dict(type='Nobody'), 4)
    with pytest.raises(TypeError, match='embed_dims .* set by the network'):
        build(dict(type=Metric if what == 'pseudo_metric' else
                   AttentionBlock, embed_dims=8), 4)


def test_the_propagation_alone_has_no_heads():
    cfg = dict(type='Propagation', pseudo_metric=dict(type='L2'))
    with pytest.raises(TypeError, match="AttentionBlock.*'L2'"):
        build_propagation(cfg, 8, num_heads=2)
