"""What Inductor makes of operators, by their base names: as its lowerings and decompositions of torch 2.13 have them."""

# Costly to compute: on CPUs never twice.
HEAVY = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})
# Read nothing.
FILLS = frozenset(
    {"full", "zeros", "ones", "arange", "iota", "scalar_tensor", "full_like", "zeros_like", "ones_like", "empty", "empty_like", "eye",
     "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
)  # fmt: skip
# Computed one by one, although torch does not tag them so.
ELEMENTWISE = frozenset(
    {"slice_scatter", "select_scatter", "diagonal_scatter", "repeat", "copy", "inductor_lookup_seed",
     "inductor_randint", "triu", "tril", "fma", "_to_copy", "convert_element_type", "clone", "where", "masked_fill", "view_as_real_copy",
     "expand_copy", "lift_fresh_copy", "as_strided_copy",
     "_low_memory_max_pool_offsets_to_indices", "glu"}
)  # fmt: skip
# Read their first input at indices that they read.
INDIRECT = frozenset({"embedding", "index", "index_select", "gather", "_unsafe_index", "_unsafe_masked_index", "take"})
# Read elements that stand elsewhere in a dimension, or none.
MOVED = frozenset({"constant_pad_nd", "flip", "rev", "roll"})
# Read windows of images, each element of them at an index of its own; a window of more elements than `LARGEST_WINDOW` is a call.
WINDOWS = frozenset({"_low_memory_max_pool_with_offsets", "avg_pool2d"})
LARGEST_WINDOW = 25
# Read images at indices that are computed.
RESAMPLED = frozenset({"upsample_nearest2d", "_upsample_nearest_exact2d", "avg_pool2d_backward", "_adaptive_avg_pool2d"})
# Write at indices that they read, into a copy of their first input.
SCATTERS = frozenset(
    {"index_put", "_unsafe_index_put", "scatter", "scatter_add", "scatter_reduce", "_unsafe_masked_index_put_accumulate",
     "embedding_dense_backward", "index_copy"}
)  # fmt: skip
REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "var_mean", "var", "std", "xor_sum", "nansum",
     "linalg_vector_norm", "norm"}
)  # fmt: skip
