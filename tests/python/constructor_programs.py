"""Constructors of PyTorch as data: a list of steps, which `run` interprets.

A step identifies tensors by numbers that count back from the last one made, so that a program still runs after steps
are removed."""

import copy
import threading

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

SEED = 3  # Specs have this seed, too, so a constructor that sets it can be captured.
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}

MAKERS = {
    "randn": lambda shape, dtype: torch.randn(shape, dtype=dtype),
    "rand": lambda shape, dtype: torch.rand(shape, dtype=dtype),
    "zeros": lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    "ones": lambda shape, dtype: torch.ones(shape, dtype=dtype),
    "full": lambda shape, dtype: torch.full(shape, 0.3, dtype=dtype),
    "arange": lambda shape, dtype: torch.arange(int(np.prod(shape)), dtype=dtype).view(shape),
    "normal": lambda shape, dtype: torch.normal(0.5, 2.0, shape, dtype=dtype),
    "out": lambda shape, dtype: torch.rand(shape, out=torch.empty(shape, dtype=dtype)),
    "like": lambda shape, dtype: torch.randn_like(torch.empty(shape, dtype=dtype)),
    "parameter": lambda shape, dtype: nn.Parameter(torch.randn(shape, dtype=dtype)),
    "channels last": lambda shape, dtype: torch.empty_strided(
        shape, [1, *np.cumprod(shape[:-1]).tolist()][:len(shape)], dtype=dtype).normal_(),
    "from_numpy": lambda shape, dtype: torch.from_numpy(np.arange(float(np.prod(shape))).reshape(shape)).to(dtype),
}

# Operations that fill a tensor.
FILLS = {
    "normal_": lambda t: t.normal_(), "normal_(1, .5)": lambda t: t.normal_(1.0, 0.5),
    "uniform_": lambda t: t.uniform_(), "uniform_(-.1, .1)": lambda t: t.uniform_(-0.1, 0.1),
    "data.normal_": lambda t: t.data.normal_(std=0.02), "detach().uniform_": lambda t: t.detach().uniform_(-1, 2),
    "zero_": lambda t: t.data.zero_(), "fill_": lambda t: t.data.fill_(0.25),
    "exponential_": lambda t: t.data.exponential_(2.0), "log_normal_": lambda t: t.data.log_normal_(0.0, 0.5),
    "cauchy_": lambda t: t.data.cauchy_(), "geometric_": lambda t: t.data.geometric_(0.3),
    "bernoulli_": lambda t: t.data.bernoulli_(0.3), "random_": lambda t: t.data.random_(2, 9),
    "init.uniform_": lambda t: nn.init.uniform_(t, -0.5, 0.5), "init.normal_": lambda t: nn.init.normal_(t, std=0.02),
    "init.trunc_normal_": lambda t: nn.init.trunc_normal_(t),
    "init.trunc_normal_(.02)": lambda t: nn.init.trunc_normal_(t, std=0.02),
    "init.trunc_normal_(cut)": lambda t: nn.init.trunc_normal_(t, std=1.0, a=-1.0, b=1.5),
    "init.xavier_uniform_": nn.init.xavier_uniform_, "init.xavier_normal_": nn.init.xavier_normal_,
    "init.kaiming_uniform_": nn.init.kaiming_uniform_, "init.kaiming_normal_": nn.init.kaiming_normal_,
    "init.kaiming_uniform_(5)": lambda t: nn.init.kaiming_uniform_(t, a=5**0.5),
    "init.kaiming_normal_(fan_out)": lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
    "init.orthogonal_": nn.init.orthogonal_, "init.orthogonal_(2)": lambda t: nn.init.orthogonal_(t, 2.0),
    "init.sparse_": lambda t: nn.init.sparse_(t, 0.3), "init.eye_": nn.init.eye_, "init.dirac_": nn.init.dirac_,
    "init.constant_": lambda t: nn.init.constant_(t, 0.1), "init.ones_": nn.init.ones_, "init.zeros_": nn.init.zeros_,
    "default_generator": lambda t: t.data.normal_(generator=torch.default_generator),
    "generator of its own": lambda t: t.data.normal_(generator=torch.Generator().manual_seed(1)),
}

# Operations that make views of a tensor or compute from it.
VIEWS = {
    "t": lambda t: t.t() if t.ndim <= 2 else t.transpose(0, 1), "row": lambda t: t[0] if t.ndim else t,
    "tail": lambda t: t[1:] if t.ndim and t.shape[0] > 1 else t, "every second": lambda t: t[::2] if t.ndim else t,
    "column": lambda t: t[..., 1:2] if t.ndim and t.shape[-1] > 1 else t, "flat": lambda t: t.reshape(-1),
    "unsqueeze": lambda t: t.unsqueeze(0), "detach": lambda t: t.detach(), "data": lambda t: t.data,
    "expand": lambda t: t.unsqueeze(0).expand(2, *t.shape), "narrow": lambda t: t.narrow(0, 0, 1) if t.ndim else t,
    "chunk": lambda t: t.chunk(2)[-1] if t.ndim else t, "flip": lambda t: t.flip(0) if t.ndim else t,
}
COMPUTES = {
    "clone": lambda t: t.clone(), "contiguous": lambda t: t.contiguous(),
    "deepcopy": lambda t: copy.deepcopy(t.detach()),
    "parameter": lambda t: nn.Parameter(t.detach()),
    "deepcopy of a parameter": lambda t: copy.deepcopy(nn.Parameter(t.detach())),
    "scaled": lambda t: t.detach() * 0.5, "shifted": lambda t: t.detach() + 1, "affine": lambda t: t.detach() * 2 - 1,
    "abs": lambda t: t.detach().abs(), "neg": lambda t: -t.detach(), "clamp": lambda t: t.detach().clamp(-0.5, 0.5),
    "tril": lambda t: t.detach().tril() if t.ndim > 1 else t.detach(), "half": lambda t: t.detach().to(torch.bfloat16),
    "double": lambda t: t.detach().double(), "float": lambda t: t.detach().float(),
    "padded": lambda t: torch.cat([t.detach().reshape(-1), torch.zeros(2, dtype=t.dtype)]),
    "stacked with zeros": lambda t: torch.stack([t.detach(), torch.zeros_like(t)]),
    "round": lambda t: t.detach().round(), "round to tenths": lambda t: torch.round(t.detach(), decimals=1),
    "trunc": lambda t: t.detach().trunc(), "norm": lambda t: t.detach().norm() if t.is_floating_point() else t.detach(),
    "norms": lambda t: t.detach().norm(dim=-1, keepdim=True) if t.ndim and t.is_floating_point() else t.detach(),
    "normalized": lambda t: nn.functional.normalize(t.detach(), dim=0) if t.ndim and t.is_floating_point()
        else t.detach(),
    "normalized rows": lambda t: t.detach() / t.detach().norm(dim=-1, keepdim=True) if t.ndim and t.is_floating_point()
        else t.detach(),
    "mean": lambda t: t.detach().mean() if t.is_floating_point() else t.detach(),
    "sum": lambda t: t.detach().sum(0) if t.ndim else t.detach(),
    "sorted": lambda t: t.detach().sort().values, "sorted down": lambda t: t.detach().sort(descending=True).values,
    "chosen": lambda t: t.detach()[[t.shape[0] - 1, 0]] if t.ndim else t.detach(),
    "selected": lambda t: t.detach().index_select(-1, torch.arange(0, t.shape[-1], 2)) if t.ndim else t.detach(),
    "rolled": lambda t: t.detach().roll(1),
    "orthogonal columns": lambda t: nn.init.orthogonal_(torch.empty(5, 4))[:, 1:],
    "shuffled": lambda t: t.detach()[torch.randperm(t.shape[0], generator=torch.Generator().manual_seed(3))] if t.ndim
        else t.detach(),
    "log": lambda t: t.detach().abs().add(1).log(), "numpy": lambda t: torch.from_numpy(t.detach().clone().numpy()),
}


def number(t):
    return float(t.detach().reshape(-1)[0].item()) if t.numel() else 0.0


# Operations that write to a tensor, from a number or another tensor.
WRITES = {
    "copy_": lambda t, o: t.data.copy_(o.detach().clone().reshape(-1)[:1]), "add_": lambda t, o: t.data.add_(1),
    "mul_": lambda t, o: t.data.mul_(0.5), "row": lambda t, o: t.data[0].zero_() if t.ndim > 1 else t.data.zero_(),
    "set row": lambda t, o: t.data[-1:].fill_(2.0) if t.ndim else t.data.fill_(2.0),
    "clamp_": lambda t, o: t.data.clamp_(-1, 1), "set data": lambda t, o: setattr(t, "data", torch.ones_like(t)),
    "copy same": lambda t, o: t.data.copy_(o.detach()) if o.shape == t.shape else t.data.zero_(),
    "transposed": lambda t, o: t.data.t().normal_() if t.ndim == 2 else t.data.normal_(),
    "item": lambda t, o: t.data.fill_(number(o)), "t_": lambda t, o: t.data.t_() if t.ndim == 2 else t,
    "masked": lambda t, o: t.data.masked_fill_(torch.ones_like(t, dtype=torch.bool).tril() if t.ndim > 1
                                              else torch.ones_like(t, dtype=torch.bool), 0.0),
    "numpy": lambda t, o: t.data.numpy().fill(3) if t.dtype in (torch.float32, torch.float64) else None,
    "by index": lambda t, o: t.data.index_fill_(0, torch.tensor([t.shape[0] - 1]), 2.0) if t.ndim else t.data.zero_(),
    "by mask": lambda t, o: t.data.__setitem__(torch.arange(t.shape[0]) % 2 == 0, 0.5) if t.ndim else t.data.zero_(),
    "copied by index": lambda t, o: t.data.__setitem__([0], torch.rand(t.shape[1:]).to(t.dtype)) if t.ndim
        else t.data.zero_(),
    "orthogonal rows": lambda t, o: nn.init.orthogonal_(t.data[: (t.shape[0] + 1) // 2]) if t.ndim > 1
        else t.data.zero_(),
    "own generator": lambda t, o: t.data[:1].normal_(generator=torch.Generator().manual_seed(4)) if t.ndim
        else t.data.zero_(),
    "zero column": lambda t, o: t.data[..., 0].zero_() if t.ndim else t.data.zero_(),
    "uniform column": lambda t, o: t.data[..., -1].uniform_(2, 3) if t.ndim else t.data.zero_(),
}

LAYERS = {
    "Linear": lambda n, m: nn.Linear(n, m), "Conv1d": lambda n, m: nn.Conv1d(n, m, 3),
    "Embedding": lambda n, m: nn.Embedding(n, m, 0),
    "LayerNorm": lambda n, m: nn.LayerNorm(n), "BatchNorm1d": lambda n, m: nn.BatchNorm1d(m),
    "LSTM": lambda n, m: nn.LSTM(n, m),
    "attention": lambda n, m: nn.MultiheadAttention(2 * n, 2), "Conv2d": lambda n, m: nn.Conv2d(n, m, 2, bias=False),
    "encoder": lambda n, m: nn.TransformerEncoder(nn.TransformerEncoderLayer(2 * n, 2, m), 2,
                                                  enable_nested_tensor=False),
    "gates": lambda n, m: orthogonal_gates(nn.GRU(n, m)),
    "skip_init": lambda n, m: nn.utils.skip_init(nn.Embedding, n, m), "PReLU": lambda n, m: nn.PReLU(n),
}


def orthogonal_gates(layer):
    for rows in layer.weight_hh_l0.data.chunk(3):
        nn.init.orthogonal_(rows)
    return layer


def on_meta(n, m):
    with torch.device("meta"):
        made = nn.Sequential(nn.Linear(n, m), nn.BatchNorm1d(m), nn.Linear(m, n))
    made.to_empty(device="cpu")
    for layer in made:
        layer.reset_parameters()
    return made


LAYERS["to_empty"] = on_meta


def initialized(module):
    """Initializes layers as models do."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.data.normal_(mean=0.0, std=0.02)
        if getattr(module, "bias", None) is not None:
            module.bias.data.zero_()


TO_LAYERS = {
    "deepcopy": lambda layer: nn.ModuleList([layer, copy.deepcopy(layer)]),
    "apply": lambda layer: layer.apply(initialized), "half": lambda layer: layer.to(torch.bfloat16),
    "copied and initialized": lambda layer: copy.deepcopy(layer).apply(initialized),
    "reset": lambda layer: [m.reset_parameters() for m in layer.modules() if hasattr(m, "reset_parameters")] and layer,
    "tied": lambda layer: nn.ModuleList([layer, layer]),
}


class Run:
    """One run of a program.

    Attributes:
        tensors: the tensors made so far.
    """

    def __init__(self):
        self.tensors, self.layers, self.kept, self.states = [], [], [], []

    def at(self, i):
        return self.tensors[-1 - i % len(self.tensors)]

    def step(self, step):
        kind, *rest = step
        getattr(self, kind)(*rest)

    def make(self, how, shape, dtype):
        self.tensors.append(MAKERS[how](tuple(shape), DTYPES[dtype]))

    def fill(self, i, how):
        if self.tensors:
            with torch.no_grad():
                FILLS[how](self.at(i))

    def view(self, i, how):
        if self.tensors:
            with torch.no_grad():
                self.tensors.append(VIEWS[how](self.at(i)))

    def compute(self, i, how):
        if self.tensors:
            self.tensors.append(COMPUTES[how](self.at(i)))

    def write(self, i, j, how):
        if self.tensors:
            with torch.no_grad():
                WRITES[how](self.at(i), self.at(j))

    def layer(self, how, n, m):
        self.layers.append(LAYERS[how](n, m))

    def to_layer(self, i, how):
        if self.layers:
            self.layers[-1 - i % len(self.layers)] = TO_LAYERS[how](self.layers[-1 - i % len(self.layers)])

    def weight(self, i):
        """Adds the parameters of a layer to the program's tensors."""
        if self.layers:
            self.tensors += list(self.layers[-1 - i % len(self.layers)].parameters())[:2]

    def keep(self, i, how):
        if self.tensors:
            self.kept.append((how, self.at(i)))

    def within(self, how, body):
        if how == "meta":
            with torch.device("meta"):
                inner = Run()
                for step in body:
                    inner.step(step)
        elif how == "fork_rng":
            with torch.random.fork_rng(devices=()):
                self.steps(body)
        elif how == "f64":
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                self.steps(body)
            finally:
                torch.set_default_dtype(before)
        elif how == "thread":
            thread = threading.Thread(target=lambda: self.steps(body))
            thread.start()
            thread.join()
        elif how == "no_grad":
            with torch.no_grad():
                self.steps(body)

    def stream(self, how):
        if how == "own seed":
            torch.manual_seed(SEED)
        elif how == "other seed":
            torch.default_generator.manual_seed(8)
        elif how == "save":
            self.states.append(torch.get_rng_state())
        elif how == "restore" and self.states:
            torch.set_rng_state(self.states[-1])
        elif how == "complex":
            torch.randn(5, dtype=torch.complex64)
        elif how == "unused":
            torch.rand(7), torch.randint(0, 9, (3,)), torch.randperm(5)
        elif how == "dropout":
            nn.functional.dropout(torch.ones(8), 0.5)

    def steps(self, body):
        for step in body:
            self.step(step)


def run(program):
    """Returns the module that a program makes."""
    state = Run()
    state.steps(program)
    model = nn.Module()
    model.layers = nn.ModuleList(state.layers)
    for i, (how, tensor) in enumerate(state.kept):
        inner = model
        if how == "nested":
            inner = nn.Module()
            model.add_module(f"inner{i}", inner)
        if how == "buffer" or not tensor.is_floating_point():
            inner.register_buffer(f"b{i}", tensor.detach())
        else:
            own = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach())
            inner.register_parameter(f"p{i}", own)
    return model


SHAPES = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)


def steps(depth):
    """Draws one step of a program."""
    which, number, size = st.sampled_from, st.integers(0, 3), st.integers(1, 5)
    simple = [
        st.tuples(st.just("make"), which(sorted(MAKERS)), SHAPES | which([(16,), (17,), (4, 9), (20, 3)]),
                  which(["f32", "f32", "f32", "bf16", "f16", "f64"])),
        st.tuples(st.just("fill"), number, which(sorted(FILLS))),
        st.tuples(st.just("view"), number, which(sorted(VIEWS))),
        st.tuples(st.just("compute"), number, which(sorted(COMPUTES))),
        st.tuples(st.just("write"), number, number, which(sorted(WRITES))),
        st.tuples(st.just("layer"), which(sorted(LAYERS)), size, size),
        st.tuples(st.just("to_layer"), number, which(sorted(TO_LAYERS))),
        st.tuples(st.just("weight"), number),
        st.tuples(st.just("keep"), number, which(["parameter", "buffer", "nested"])),
        st.tuples(st.just("keep"), number, which(["parameter", "buffer", "nested"])),
        st.tuples(st.just("stream"), which(["own seed", "save", "restore", "complex", "unused", "other seed",
                                            "dropout"])),
    ]
    if depth:
        inner = st.lists(steps(depth - 1), min_size=1, max_size=3)
        simple.append(st.tuples(st.just("within"), which(["meta", "fork_rng", "f64", "thread", "no_grad"]), inner))
    return st.one_of(simple)


@st.composite
def programs(draw):
    """Draws a constructor that keeps at least one tensor."""
    size, changed = st.integers(1, 5), st.tuples(st.just("to_layer"), st.just(0), st.sampled_from(sorted(TO_LAYERS)))
    layers = [draw(st.tuples(st.just("layer"), st.sampled_from(sorted(LAYERS)), size, size)),
              *draw(st.lists(changed, min_size=1, max_size=3))] if draw(st.booleans()) else []
    body = [*layers, *draw(st.lists(steps(1), min_size=1, max_size=7))]
    first = ("make", draw(st.sampled_from(sorted(MAKERS))), draw(SHAPES), "f32")
    return [first, *body, ("keep", draw(st.integers(0, 3)), "parameter")]
