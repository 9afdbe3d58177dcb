"""shardinit-values(7) in NumPy, written from that page alone: what a second implementation needs,
and no more. It is slow, knows nothing of shardinit's code, and trusts its input.

elements_of() gives any elements of a tensor, wherever they stand; digests_of() all of a plan.json, as does

    PYTHONPATH=tests/python python -m reference PLAN.JSON [FILE ...]

where the files are those that tensors are taken from.
"""

import hashlib

import numpy as np

from .expressions import DRAWS, FUNCTIONS, Expression
from .matrices import normalized, orthogonal, sparse
from .jax_threefry import fold_in, multiply_add, threefry
from .samplers import JaxKey, blocks_of, f32, f64, key_of, normal, truncated_normal, u32, u64, uniform, words_of

CONTRACT_VERSION = 1
ENGINES = {"philox4x32": int, "jax_threefry": JaxKey}  # How each knows its keys.

# Bytes and, of floats but f64, the bits of the mantissa and the bias (shardinit-format(5)).
SIZES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "f8e4m3fn": 1, "f8e5m2": 1, "i8": 1, "i16": 2,
         "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1}
SMALL_FLOATS = {"bf16": (7, 127), "f16": (10, 15), "f8e4m3fn": (3, 7), "f8e5m2": (2, 15)}
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


def elements_of(engine, seed, path, dtype, shape, init, indices, files=()):
    """The elements of a tensor with these row-major indices (i64), as unsigned integers that hold
    their bits. `path` is its `key`, if it has one; `init` as in plan.json; `files` are the contents
    of files."""
    (kind, parameters), = init.items()
    if kind == "file":
        content, = {file for file in files if hashlib.sha256(file).hexdigest() == parameters["sha256"]}
        return np.frombuffer(content, f"<u{SIZES[dtype]}")[indices]
    key = ENGINES[engine](path["words"][0] | path["words"][1] << 32 if isinstance(path, dict) else key_of(seed, path))
    p = {name: f64(value) if isinstance(value, float) else value for name, value in parameters.items()}
    if kind == "constant":
        return encode_exactly(np.full(len(indices), p["value"], f64), dtype)
    if kind == "expr":
        return encode_exactly(np.ascontiguousarray(Expression(p["text"], key, shape, indices).value), dtype)
    with np.errstate(all="ignore"):
        if kind == "uniform":
            values = uniform(key, 0, indices, p["low"], p["high"])
        elif kind == "normal":
            values = normal(key, 0, indices, p["mean"], p["std"])
        elif kind == "truncated_normal":
            values = truncated_normal(key, 0, indices, p["mean"], p["std"], p["low"], p["high"])
        elif kind == "orthogonal":
            values = orthogonal(key, shape, indices, p["gain"], p["rows"], p["columns"])
        elif kind == "sparse":
            values = sparse(key, shape, indices, p["std"], p["zeros"])
        else:
            assert kind == "normalized"
            values = normalized(key, shape, indices, p["axis"], p["length"])
    return encode(values, dtype)


def indices_of(global_shape, offset, shape):
    """The row-major indices in a tensor of the elements of a box, in its own row-major order."""
    indices = np.zeros(1, np.int64)
    for size, start, count in zip(global_shape, offset, shape):
        indices = (indices[:, None] * size + np.arange(start, start + count)).ravel()
    return indices


# Digests (shardinit-format(5)) --------------------------------------------------

CHUNK = 1 << 18  # So many elements are made at a time; a matrix is made whole.


def tensor_digest(plan, tensor, files):
    shape, dtype = tensor["global_shape"], tensor["dtype"]
    count = int(np.prod(shape, dtype=np.int64))
    chunk = count if next(iter(tensor["init"])) in ("orthogonal", "sparse") else CHUNK
    digest = hashlib.sha256()
    for begin in range(0, count, chunk):
        words = elements_of(plan["engine"], plan["seed"], tensor.get("key", tensor["path"]), dtype, shape, tensor["init"],
                            np.arange(begin, min(begin + chunk, count)), files)
        digest.update(words.astype(words.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def digests_of(plan, files=()):
    """(digest of the model, path → digest of the tensor)"""
    assert plan["contract_version"] == CONTRACT_VERSION
    tensors = {tensor["path"]: tensor for tensor in plan.get("logical", plan["tensors"])}
    digests = {path: tensor_digest(plan, tensor, files) for path, tensor in tensors.items()}
    lines = sorted(f"{path} {t['dtype']} [{','.join(map(str, t['global_shape']))}] {digests[path]}\n".encode()
                   for path, t in tensors.items())
    return hashlib.sha256(b"".join(lines)).hexdigest(), digests
