"""Pure numpy functions: two arrays in, numbers out.

compare: the one pass every output gets. The other files answer one question each: rows (dead rows, cosine per row),
ranking (top-1, KL), steps (quantised), shares (exact kinds).
"""

from farm.metrics.compare import compare as compare
from farm.metrics.decode import PLAIN as PLAIN
from farm.metrics.decode import Decoder as Decoder
from farm.metrics.result import EXACT_SNR_DB as EXACT_SNR_DB
from farm.metrics.result import Metrics as Metrics
