"""shardinit-values(7) in NumPy, written from that page alone: what a second implementation needs,
and no more. It is slow, knows nothing of shardinit's code, and trusts its input.

elements_of() gives any elements of a tensor, wherever they stand; digests_of() all of a plan.json, as does

    PYTHONPATH=tests/python python -m reference PLAN.JSON [FILE ...]

where the files are those that tensors are taken from.
"""

import hashlib
import re

import numpy as np

from .expressions import DRAWS, FUNCTIONS, Expression
from .matrices import normalized, norms, orthogonal, sparse
from .jax_threefry import fold_in, multiply_add, threefry
from .samplers import JaxKey, blocks_of, f32, f64, key_of, normal, truncated_normal, u32, u64, uniform, words_of
from .sources import SMALL_FLOATS, SourceTensor, rows_like
from .torch_cpu import Stream

CONTRACT_VERSION = 1
TORCH = "torch_cpu/2.13/avx2"
ENGINES = ["philox4x32", "jax_threefry", TORCH]

# Bytes (shardinit-format(5)).
SIZES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "f8e4m3fn": 1, "f8e5m2": 1, "i8": 1, "i16": 2,
         "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1}
MANTISSAS = {"f32": 23, "f64": 52} | {dtype: bits for dtype, (bits, _) in SMALL_FLOATS.items()}
LARGEST = {"bf16": 0x7F7F, "f16": 0x7BFF, "f8e4m3fn": 0x7E, "f8e5m2": 0x7B}  # These are their bits.


def encode(values, dtype):
    """f32 values as the bits of the stored type."""
    if dtype == "f32":
        return values.view(u32)
    if dtype == "f64":
        return values.astype(f64).view(u64)
    mantissa, bias = SMALL_FLOATS[dtype]
    size = np.abs(values.astype(f64))
    exponent = np.where(size == 0, 1 - bias, np.maximum(np.frexp(size)[1] - 1, 1 - bias))
    units = np.rint(np.ldexp(size, mantissa - exponent))
    code = (exponent + bias - 1) * 2**mantissa + units.astype(int)
    assert (code <= LARGEST[dtype]).all(), "no finite number"
    return (code | np.signbit(values).astype(int) << (8 * SIZES[dtype] - 1)).astype(f"u{SIZES[dtype]}")


def encode_exactly(values, dtype):
    """f64 values that were not drawn."""
    if dtype == "f64":
        assert np.isfinite(values).all()
        return values.view(u64)
    if dtype in SMALL_FLOATS or dtype == "f32":
        with np.errstate(over="ignore"):
            values = values.astype(f32)
        assert np.isfinite(values).all()
        return encode(values, dtype)
    assert (np.floor(values) == values).all() and (np.abs(values) < 2.0**53).all()
    signed = values.astype(np.int64)
    stored = signed.astype(f"{'i' if dtype[0] == 'i' else 'u'}{SIZES[dtype]}")
    assert (stored.astype(f64) == values).all() and (dtype != "bool" or (stored <= 1).all())
    return stored.view(f"u{SIZES[dtype]}")


def encode_of_source(tensor, at, dtype):
    """Elements of a tensor of another type."""
    numbers = tensor.numbers[at]
    finite = np.isfinite(numbers)
    words = encode_exactly(np.where(finite, numbers, 0.0), dtype)
    assert finite.all() or dtype in MANTISSAS and not (dtype == "f8e4m3fn" and np.isinf(numbers).any())
    for i in np.flatnonzero(~finite):
        bits, old, new = int(tensor.words[at[i]]), MANTISSAS[tensor.dtype], MANTISSAS[dtype]
        sign = bits >> (8 * SIZES[tensor.dtype] - 1) << (8 * SIZES[dtype] - 1)
        mantissa = 0
        if np.isnan(numbers[i]):
            kept = 0 if dtype in ("f16", "f8e5m2") else bits % 2**old << 52 - old >> 52 - new
            mantissa = 2**new - 1 if dtype == "f8e4m3fn" else kept | 2 ** (new - 1)
        words[i] = sign | (2 ** (8 * SIZES[dtype] - 1) - 2**new) | mantissa
    return words


def key_of_tensor(engine, seed, path):
    """The key of a path, or the one that is given."""
    given = path if isinstance(path, dict) else {}
    if engine == TORCH:
        return Stream(seed, **given)
    key = given["words"][0] | given["words"][1] << 32 if given else key_of(seed, path)
    return JaxKey(key) if engine == "jax_threefry" else key


def elements_of(engine, seed, path, dtype, shape, init, indices, files=(), sources=None, draw=0):
    """The elements of a tensor with these row-major indices (i64), as unsigned integers that hold
    their bits. `path` is its `key`, if it has one; `init` as in plan.json; `files` are the contents
    of files, `sources` a SourceTensor for each pair of names and for the path whose norms are taken, and `draw` the
    first of its draws."""
    (kind, parameters), = init.items()
    if kind == "parts":
        return elements_of_parts(engine, seed, path, dtype, shape, parameters, indices, sources, draw)
    if kind == "file":
        content, = {file for file in files if hashlib.sha256(file).hexdigest() == parameters["sha256"]}
        return np.frombuffer(content, f"<u{SIZES[dtype]}")[indices]
    key = key_of_tensor(engine, seed, path)
    p = {name: f64(value) if isinstance(value, float) else value for name, value in parameters.items()}
    if kind == "constant":
        return encode_exactly(np.full(len(indices), p["value"], f64), dtype)
    if kind == "expr":
        value = Expression(p["text"], key, shape, indices, sources, draw).value
        return encode_exactly(np.ascontiguousarray(value), dtype)
    if kind == "source":
        tensor = sources[p["source"], p["tensor"]]
        index = [Expression(text, key, shape, indices, sources).value for text in p["index"]]
        at = tensor.places(index) if index else indices if tensor.shape else 0 * indices
        return tensor.words[at] if tensor.dtype == dtype else encode_of_source(tensor, at, dtype)
    if kind == "norms":
        return encode_exactly(norms(sources[p["of"]], shape, indices), dtype)
    if kind == "rows_like":
        return encode_exactly(rows_like(key, draw, shape, indices, sources[p["source"], p["tensor"]],
                                        p["axis"], p["rows"], p["std"]), dtype)
    with np.errstate(all="ignore"):
        if engine == TORCH:
            return encode_exactly(f64(key.elements_of(kind, p, dtype, shape, indices)), dtype)
        if kind == "uniform":
            values = uniform(key, draw, indices, p["low"], p["high"])
        elif kind == "normal":
            values = normal(key, draw, indices, p["mean"], p["std"])
        elif kind == "truncated_normal":
            values = truncated_normal(key, draw, indices, p["mean"], p["std"], p["low"], p["high"])
        elif kind == "orthogonal":
            values = orthogonal(key, shape, indices, p["gain"], p["rows"], p["columns"])
        elif kind == "sparse":
            values = sparse(key, shape, indices, p["std"], p["zeros"])
        else:
            assert kind == "normalized"
            values = normalized(key, shape, indices, p["axis"], p["length"])
    return encode(values, dtype)


def draws_of(init):
    """How many draws a part takes."""
    (kind, parameters), = init.items()
    if kind == "expr":
        return len(re.findall(r"\b(?:normal|uniform|bits)\(", parameters["text"]))
    return int(kind in ("uniform", "normal", "truncated_normal") or (kind == "rows_like" and parameters["std"] > 0))


def elements_of_parts(engine, seed, path, dtype, shape, parameters, indices, sources, draw):
    axis, own = parameters["axis"], list(shape)
    at = np.unravel_index(indices, shape)
    made, begin = np.zeros(len(indices), f"u{SIZES[dtype]}"), 0
    for part in parameters["of"]:
        own[axis] = part["length"]
        here = (at[axis] >= begin) & (at[axis] < begin + part["length"])
        inner = [c[here] - (begin if d == axis else 0) for d, c in enumerate(at)]
        if here.any():
            made[here] = elements_of(engine, seed, path, dtype, own, part["init"], np.ravel_multi_index(inner, own),
                                     (), sources, draw)
        begin += part["length"]
        draw += draws_of(part["init"])
    return made


def indices_of(global_shape, offset, shape):
    """The row-major indices in a tensor of the elements of a box, in its own row-major order."""
    indices = np.zeros(1, np.int64)
    for size, start, count in zip(global_shape, offset, shape):
        indices = (indices[:, None] * size + np.arange(start, start + count)).ravel()
    return indices


# Digests (shardinit-format(5)) --------------------------------------------------

CHUNK = 1 << 18  # So many elements are made at a time; a matrix is made whole.


def tensor_digest(plan, tensor, files, sources):
    shape, dtype = tensor["global_shape"], tensor["dtype"]
    count = int(np.prod(shape, dtype=np.int64))
    chunk = count if next(iter(tensor["init"])) in ("orthogonal", "sparse") else CHUNK
    digest = hashlib.sha256()
    for begin in range(0, count, chunk):
        words = elements_of(plan["engine"], plan["seed"], tensor.get("key", tensor["path"]), dtype, shape,
                            tensor["init"], np.arange(begin, min(begin + chunk, count)), files, sources)
        digest.update(words.astype(words.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def digests_of(plan, files=(), sources=None):
    """(digest of the model, path → digest of the tensor)"""
    assert plan["contract_version"] == CONTRACT_VERSION
    tensors = {tensor["path"]: tensor for tensor in plan.get("logical", plan["tensors"])}
    digests = {path: tensor_digest(plan, tensor, files, sources) for path, tensor in tensors.items()}
    lines = sorted(f"{path} {t['dtype']} [{','.join(map(str, t['global_shape']))}] {digests[path]}\n".encode()
                   for path, t in tensors.items())
    return hashlib.sha256(b"".join(lines)).hexdigest(), digests
