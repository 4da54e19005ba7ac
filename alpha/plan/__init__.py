"""Which way a device computes an op: the one chooser, for every device.

    cost        Stage and Cost: work, bytes, launches; Rates of a device; the time that follows, in microseconds
    choice      Candidate: a way to compute, which a device offers; choose, rank, explain
    requests    the algorithm that a call asks for, whether it insists on it, and a precision

This room knows neither devices nor convolutions: a device yields candidates (alpha/cpu/algorithms, alpha/cuda/conv),
and alpha/ops/algorithms says which shapes each algorithm serves, and its costs. Precisions stand in
`alpha.core.precision`.
"""

from alpha.plan.choice import DIRECT, TAKEN_BELOW, Candidate, Choice, Offer, Option, by_time, choose, explain, rank
from alpha.plan.cost import Cost, Rates, Stage, time_us
from alpha.plan.requests import AUTO, Request

__all__ = [
           "AUTO",
           "DIRECT",
           "TAKEN_BELOW",
           "Candidate",
           "Choice",
           "Cost",
           "Offer",
           "Option",
           "Rates",
           "Request",
           "Stage",
           "by_time",
           "choose",
           "explain",
           "rank",
           "time_us",
]
