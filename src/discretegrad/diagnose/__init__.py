"""Which estimator suits a model: bias, variance and cost of each, measured on the model itself."""

from .result import Diagnosis as Diagnosis
from .result import DiagnosisRow as DiagnosisRow
from .run import diagnose as diagnose
