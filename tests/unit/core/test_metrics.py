"""The list of metrics: names in Prometheus's style, and the same list on the page."""

import re

import pytest

from headrace.core.metrics import METRICS, Kind
from support.project import ROOT


def test_the_page_has_the_list():
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | "
        f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.description} |"
        for metric in METRICS
    ]
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `(?:headrace|kafka)_[a-z_]+` \|.*\|$", page, flags=re.MULTILINE) == rows


def test_each_name_is_there_once():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_prometheus(metric):
    assert re.fullmatch(r"(headrace|kafka)_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert ("_seconds" in metric.name) == (metric.unit == "seconds")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert metric.labels[0] == ("pipeline" if metric.name.startswith("headrace_") else "cluster_name")
