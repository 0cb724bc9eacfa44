"""Figures in the text format of Prometheus or of OpenMetrics, by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from taskd.metrics.figures import Figures, Histogram
from taskd.metrics.table import COUNTER, HISTOGRAM, METRICS
from taskd.metrics.table import Metric as Row

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class _Figures(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            yield self._distribution(row) if row.kind == HISTOGRAM else self._plain(row)

    def _plain(self, row: Row) -> Metric:
        made = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
        family = made(row.name, row.meaning, labels=row.labels)
        # a copy of a dict is made in one go, as far as the thread that changes it can see
        for labels, value in self._figures.values[row.name].copy().items():
            family.add_metric(labels, value)
        return family

    def _distribution(self, row: Row) -> Metric:
        family = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
        for labels, histogram in self._figures.histograms[row.name].copy().items():
            family.add_metric(labels, _cumulative(histogram), histogram.sum)
        return family


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, histogram.buckets), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts.copy())), strict=True))


class Exposition:
    def __init__(self, figures: Figures) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(figures))

    def text(self, openmetrics: bool) -> tuple[bytes, str]:
        """The metrics, and their content type."""
        encode, content_type = choose_encoder(OPENMETRICS if openmetrics else "")
        return encode(self._registry), content_type
