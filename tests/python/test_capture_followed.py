"""Constructors do more than call functions of torch.nn.init: they copy, make views, and use NumPy's memory and
PyTorch's generator. A captured spec has all of this, as the real constructor shows, or is rejected with the reason."""

import copy
import functools
import threading
import warnings

import numpy as np
import pytest
from clients import client_of, like_torch_cpu

torch = client_of("torch")

import shardinit
import shardinit.capture
from shardinit._errors import CaptureWarning
from torch import manual_seed, nn

ENGINES = ("torch_cpu", "philox4x32")
SEED = 3
TABLE = torch.arange(6.0)
BESIDES = nn.Linear(3, 3)


def holder(**tensors):
    """Returns a module with these tensors."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            module.register_parameter(name, nn.Parameter(tensor))
        else:
            module.register_buffer(name, tensor)
    return module


def bert_encoder():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 0.02)
            module.bias.data.zero_()
    return model


def copied(change):
    """Returns a constructor of a layer that is copied and then changed, and of a layer that is drawn after it."""

    def make():
        layer = copy.deepcopy(nn.Linear(8, 8))
        with torch.no_grad():
            change(layer)
        return nn.Sequential(layer, nn.Linear(8, 8))

    return make


def shared_buffers():
    module = nn.Module()
    rows = torch.zeros(4)
    module.register_buffer("all", rows)
    module.register_buffer("part", rows[2:])
    module.register_buffer("unused", torch.ones(2))
    other = copy.deepcopy(module)
    other.part.fill_(5)
    return nn.ModuleList([module, other])


def after(draw):
    """Returns a constructor of a layer whose place in the stream depends on `draw`."""

    def make():
        draw()
        return nn.Linear(4, 5)

    return make


def on_meta():
    with torch.device("meta"):
        nn.Linear(30, 40)
        nn.init.orthogonal_(torch.empty(3, 3))
        nn.init.trunc_normal_(torch.empty(3, 3))


def back_and_forth():
    state = torch.get_rng_state()
    nn.Linear(3, 3)
    torch.default_generator.set_state(state)


def forked():
    before = nn.Linear(3, 3)
    with torch.random.fork_rng(devices=()):
        manual_seed(7)
        nn.Linear(9, 9)
    return nn.Sequential(before, nn.Linear(3, 3))


def numpy_changes():
    array = np.zeros(4, np.float32)
    tensor = torch.from_numpy(array)
    later = tensor + 0
    array[:] = 3
    return holder(tensor=tensor, later=later)


def numpy_and_pytorch_in_turn():
    tensor = torch.arange(6.0)
    array = tensor.numpy()
    tensor.add_(1)
    array *= 2
    between = tensor + 0
    array[0] = 9
    tensor[1].fill_(array.sum())
    return holder(tensor=tensor, between=between, again=torch.from_numpy(array).clone(),
                  number=torch.full((3,), float(array[1])), real=torch.from_numpy(TABLE.numpy() * 2))


def made_before():
    module = nn.Module()
    module.register_buffer("table", TABLE)
    module.register_buffer("part", TABLE[2:])
    module.odd = nn.Parameter(TABLE[1::2] + TABLE[:3])
    module.besides = copy.deepcopy(BESIDES)
    return module


def in_a_thread(make):
    def run():
        made = []
        thread = threading.Thread(target=lambda: made.append(make()))
        thread.start()
        thread.join()
        return holder(made=made[0])

    return run


def emptied():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    model.to_empty(device="cpu")
    for layer in model:
        layer.reset_parameters()
    return model


def scalars_on_meta():
    """Initializes a model made on meta, where numbers from `torch.tensor` have no memory, like all tensors there."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3))
        model.scale = nn.Parameter(torch.tensor(1.0))
        model.register_buffer("places", torch.tensor([1, 2, 3]))
    model.to_empty(device="cpu")
    for layer in model:
        layer.reset_parameters()
    nn.init.ones_(model.scale)
    model.places.zero_()
    return model


def chosen():
    """Returns a module with elements that tables of indices choose, each once."""
    table = torch.randn(30, 4)
    return holder(rows=table[[3, 9, 20]],
                  embedded=nn.functional.embedding(torch.tensor([[1, 2], [5, 0]]), torch.rand(6, 4)),
                  columns=torch.randn(5, 30)[:, [3, 7, 9]] * 2, corner=torch.randn(5, 6)[[0, 4]][:, [1, 2]],
                  pairs=torch.rand(4, 5)[[1, 3], [0, 4]], turned=torch.randn(40)[torch.arange(39, -1, -1)],
                  selected=torch.rand(7, 3).index_select(1, torch.tensor([2, 0])),
                  gathered=torch.randn(3, 4).gather(1, torch.tensor([[0], [2], [3]])),
                  rolled=torch.randn(5, 3).roll(2, 0))


def skipped():
    layer = nn.utils.skip_init(nn.Linear, 3, 4)
    nn.init.normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def turned_in_place():
    a, b = torch.randn(4, 5), torch.empty(20)
    a.t_()
    torch.rand(20, out=b)
    return holder(a=a, b=b, c=torch.rand(3, generator=torch.default_generator))


def orthogonal_kernel():
    layer = nn.Conv2d(3, 8, 3)
    nn.init.orthogonal_(layer.weight)
    return layer


def own(make, *seed):
    """Returns a constructor with its own generator, whose numbers are the same for each seed of the spec."""

    def run():
        generator = torch.Generator()
        if seed:
            generator.manual_seed(*seed)
        model = make(generator)
        model.after = nn.Parameter(torch.randn(20))
        return model

    return run


def drawn_by(g):
    return holder(
        normal=torch.randn(40, generator=g), turned=torch.empty(6, 5).t().uniform_(-1, 1, generator=g),
        places=torch.randperm(9, generator=g), counts=torch.randint(0, 9, (5,), generator=g),
        rough=torch.empty(20, dtype=torch.bfloat16).normal_(generator=g),
        coins=torch.bernoulli(torch.full((30,), 0.4), generator=g),
        few=torch.multinomial(torch.ones(9), 4, generator=g), out=torch.rand(5, out=torch.empty(5), generator=g),
        truncated=nn.init.trunc_normal_(torch.empty(40, 5), generator=g),
        xavier=nn.init.xavier_uniform_(torch.empty(6, 4), generator=g),
        orthogonal=nn.init.orthogonal_(torch.empty(6, 4), generator=g),
        item=torch.full((3,), torch.rand(1, generator=g).item()),
        noisy=torch.randn(20) + torch.randn(20, generator=g) * 0.1,
        shuffled=torch.randn(20)[torch.randperm(20, generator=g)])


def experts(init, shape=(4, 8, 12), *, after=None):
    """Returns a constructor of stacked experts, initialized one after the other, both matrices of each in turn."""

    def make():
        up, down = torch.empty(shape), torch.empty(shape[0], shape[2], shape[1])
        for expert in range(shape[0]):
            for weights in (up, down):
                init(weights[expert])
                if after:
                    after(weights[expert])
        return nn.Sequential(holder(up=up, down=down), nn.Linear(3, 3))

    return make


def hippo(size):
    """Returns a constructor of the matrix of state space models, made element by element."""

    def make():
        matrix = torch.zeros(size, size)
        for n in range(size):
            for k in range(n + 1):
                matrix[n, k] = -(((2 * n + 1) * (2 * k + 1)) ** 0.5) if k < n else n + 1
                matrix[n, k] = matrix[n, k] / 2
        return nn.Sequential(holder(matrix=matrix), nn.Linear(3, 3))

    return make


def growing(length):
    """Returns a constructor whose elements use the two before, so that their expressions would double each time."""

    def make():
        numbers, last = torch.ones(length), torch.ones(())
        for n in range(2, length):
            numbers[n] = (numbers[n - 1] + numbers[n - 2]) / 2.1
            last = last * 1.01 + 0.1
        return nn.Sequential(holder(numbers=numbers, last=last), nn.Linear(3, 3))

    return make


@functools.lru_cache
def cached_table(size):
    return torch.arange(size) * 2.0


FOLLOWED = {
    "a TransformerEncoder as BERT initializes it": bert_encoder,
    "data of a copy": copied(lambda layer: layer.weight.data.normal_()),
    "a copy, detached": copied(lambda layer: layer.weight.detach().zero_()),
    "a row of a copy": copied(lambda layer: layer.weight[0].zero_()),
    "a transposed copy": copied(lambda layer: layer.weight.t()[:, 2].uniform_()),
    "a copy is copied to": copied(lambda layer: layer.weight.data.copy_(torch.ones(8, 8))),
    "a copy's data is set": copied(lambda layer: setattr(layer.weight, "data", torch.zeros(8, 8))),
    "copies of buffers that share memory": shared_buffers,
    "copies of BatchNorm": lambda: nn.ModuleList([copy.deepcopy(nn.BatchNorm1d(4)) for _ in range(2)]),
    "draws on meta": after(on_meta),
    "complex draws": after(lambda: (torch.randn(3, dtype=torch.complex64), torch.rand(20, dtype=torch.complex128))),
    "the spec's own seed": after(lambda: manual_seed(SEED)),
    "fork_rng": lambda: nn.Sequential(nn.Linear(2, 2), *list(forked())),
    "NumPy changes memory": numpy_changes,
    "NumPy and PyTorch change memory": numpy_and_pytorch_in_turn,
    "tensors from before": made_before,
    "constants of a thread": in_a_thread(lambda: torch.arange(4.0)),
    "generators of its own": own(drawn_by, 5),
    "a generator without a seed": own(drawn_by),
    "a number that is masked": lambda: holder(a=torch.rand(()).masked_fill_(torch.tensor(True), 0.0)),
    "to_empty": emptied,
    "scalars on meta": scalars_on_meta,
    "chosen elements": chosen,
    "skip_init": skipped,
    "half and float": lambda: nn.Sequential(nn.Linear(3, 4)).half().float(),
    "in-place views, out=, the generator by name": turned_in_place,
    "an orthogonal kernel": orthogonal_kernel,
    "cached tensors": lambda: holder(a=cached_table(5)),
    "experts": experts(lambda weights: nn.init.normal_(weights, 0, 0.02)),
    "experts of kaiming_uniform_": experts(lambda weights: nn.init.kaiming_uniform_(weights, a=5**0.5), (3, 5, 7)),
    "experts with padding": experts(nn.init.xavier_normal_, after=lambda weights: weights[0].zero_()),
    "many experts": experts(nn.init.normal_, (130, 2, 16)),
    "HiPPO": hippo(16),
    "a loop over elements": growing(200),
    "dirac_ of many channels": lambda: holder(a=nn.init.dirac_(torch.empty(90, 90, 3))),
    "bounds that are equal": lambda: nn.Sequential(*[holder(
        a=nn.init.uniform_(torch.empty(5), 0.3, 0.3), b=nn.init.trunc_normal_(torch.empty(5), a=0.7, b=0.7),
        c=nn.init.xavier_uniform_(torch.empty(3, 4), gain=0), d=torch.rand(5)) for _ in range(2)]),
}


@like_torch_cpu()
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FOLLOWED)
def test_capture_follows_what_constructors_do(name, engine):
    verified = shardinit.capture.torch(FOLLOWED[name], engine=engine, seed=SEED).verify()
    assert verified.good, verified.table()
    if engine == "torch_cpu" and "orthogonal kernel" not in name:
        assert all(tensor.result == "equal" for tensor in verified.tensors), verified.table()


def swallows():
    try:
        number = torch.rand(1).item()
    except Exception:
        number = 1.0
    return holder(a=torch.full((3,), number))


def numpy_of_random():
    return holder(a=torch.from_numpy(torch.randn(3).numpy() * 2))


def random_in_numpy():
    tensor = torch.from_numpy(np.zeros(4, np.float32))
    nn.init.normal_(tensor)
    return holder(a=tensor)


def signed_otherwise():
    return holder(a=torch._neg_view(torch.randn(3)))


KEPT = []


def keeps():
    if not KEPT:
        KEPT.append(torch.ones(3))
    return holder(a=KEPT[0] * 2)


seeds = "the constructor seeds PyTorch's generator with 5, and the spec's seed is 3"
REFUSED = {
    "manual_seed": (after(lambda: manual_seed(5)), seeds),
    "default_generator": (after(lambda: torch.default_generator.manual_seed(5)), seeds),
    "set_state": (after(lambda: torch.set_rng_state(torch.Generator().manual_seed(5).get_state())), seeds),
    "a state from elsewhere": (after(lambda: torch.default_generator.set_state(elsewhere())), "state from elsewhere"),
    "draws of a thread": (in_a_thread(lambda: torch.randn(3)), "is not seen, as a thread's draws"),
    "the seed": (lambda: holder(a=torch.full((3,), float(torch.initial_seed()))), "`initial_seed` asks for the seed"),
    "the generator's seed": (lambda: holder(a=torch.full((3,), torch.default_generator.initial_seed())),
                             "asks for the seed"),
    "the state": (lambda: holder(a=torch.get_rng_state().float()),
                  "the state of PyTorch's generator is used as numbers"),
    "the state as a buffer": (lambda: holder(a=torch.get_rng_state()), "the state of PyTorch's generator is used"),
    "numbers that are caught": (swallows, "asks for the value of random numbers"),
    "NumPy looks at numbers": (numpy_of_random, "`numpy` asks for the value of random numbers"),
    "NumPy shares numbers": (random_in_numpy, "random numbers are written to memory that NumPy shares"),
    "another sign": (signed_otherwise, "a view of memory with another sign"),
    "on meta": (lambda: nn.Linear(3, 4, device="meta"), "it is on the device `meta`, where nothing has values"),
    "lazy modules": (lambda: nn.LazyConv1d(4, 3), "has no shape before the model has seen an input"),
    "another device": (lambda: holder(a=torch.randn(3, device="cuda").cpu()), "the device `cuda"),
    "a copy of the generator": (lambda: holder(a=torch.rand(3, generator=torch.default_generator.clone_state())),
                                "draws from a generator with the state of PyTorch's own"),
    "a state given to another one": (lambda: holder(a=of_state(torch.get_rng_state())),
                                     "with the state of PyTorch's own"),
    "a seed of the system": (lambda: torch.Generator().seed(), "`seed` gives a generator a seed of the system"),
    "random arguments": (own(lambda g: holder(a=torch.normal(torch.rand(20), 1.0, generator=g))),
                         "has random arguments and a generator of its own"),
    "many numbers of a generator": (own(lambda g: holder(a=torch.empty(2**15, 2**15).normal_(generator=g))),
                                    "draws 1073741824 numbers from a generator of its own, which a file has to keep"),
    "elements drawn one by one": (experts(lambda weights: [w.normal_() for w in weights.view(-1)], (2, 3, 4)),
                                  "aten.normal_"),
    "a gain that is drawn": (lambda: holder(a=nn.init.orthogonal_(torch.empty(3, 3), torch.rand(()))),
                             "`orthogonal_` has a random number as `gain`"),
    "a gain for each column": (lambda: holder(a=nn.init.orthogonal_(torch.empty(3, 3), torch.rand(3))),
                               "random number"),
    "a std that no spec has": (lambda: holder(a=nn.init.normal_(torch.empty(3), std=1e-30)), "`std` is 1e-30"),
    "an infinite std": (lambda: holder(a=nn.init.normal_(torch.empty(3), std=float("inf"))),
                        "a spec has no number inf"),
    "what PyTorch refuses": (lambda: holder(a=nn.init.uniform_(torch.empty(3), 2, 1)),
                             "expects to return a [from, to) range"),
}
AT_THE_END = {"on meta", "another sign", "draws of a thread", "the state as a buffer"}
FOLLOWED_BY_PHILOX = {"manual_seed", "default_generator", "set_state"}  # Distributions do not change.


def of_state(state):
    generator = torch.Generator()
    generator.set_state(state)
    return torch.rand(3, generator=generator)


def elsewhere():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    return generator.get_state()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFUSED)
def test_capture_rejects_what_it_cannot_follow_with_a_reason(name, engine):
    make, words = REFUSED[name]
    if engine == "philox4x32" and name in FOLLOWED_BY_PHILOX:
        assert shardinit.capture.torch(make, engine=engine, seed=SEED).verify().good
        return
    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(make, engine=engine, seed=SEED)
    assert words in str(caught.value)
    assert __file__ in str(caught.value) or name in AT_THE_END


def twice(*sizes):
    """Returns a constructor of layers of these sizes, each drawn from the start of the stream."""

    def make():
        layers = []
        for size in sizes:
            manual_seed(SEED)
            layers.append(nn.Linear(4, size))
        return nn.Sequential(*layers)

    return make


@like_torch_cpu()
def test_table_and_copies_of_its_rows_are_both_captured():
    """A table and some of its rows are both captured, as in PEFT's `trainable_token_indices`; only torch_cpu can use a
    number in two tensors."""

    def make():
        table = nn.Embedding(30, 4)
        table.delta = nn.Parameter(table.weight[[5, 1, 1, 7]].clone())
        return table

    verified = shardinit.capture.torch(make, engine="torch_cpu", seed=SEED).verify()
    assert [tensor.result for tensor in verified.tensors] == ["equal", "equal"]
    with pytest.raises(shardinit.CaptureError, match="delta: one random number is in several elements"):
        shardinit.capture.torch(make)


def test_capture_leaves_out_empty_buffers_with_a_warning():
    def make():
        layer = nn.Linear(3, 4)
        layer.register_buffer("none", torch.tensor([]))
        return layer

    with pytest.warns(CaptureWarning, match="leaves out `none`: a spec cannot declare a buffer without elements"):
        captured = shardinit.capture.torch(make, seed=SEED)
    assert captured.verify().good and list(captured.tensors) == ["weight", "bias"]
    with pytest.raises(shardinit.CaptureError,
                       match=r"a: its shape is \[0\], and a spec has no tensor without elements"):
        shardinit.capture.torch(lambda: holder(a=torch.empty(0)))


@like_torch_cpu()
def test_redrawn_numbers_are_tied_or_rejected():
    for sizes in ((4, 4), (4, 8)):
        assert shardinit.capture.torch(twice(*sizes), engine="torch_cpu", seed=SEED).verify().good
    for seed in (SEED, 4):
        tied = shardinit.capture.torch(twice(4, 4), seed=seed)
        assert tied.verify().good and "tie" in tied.text
        with pytest.raises(shardinit.CaptureError, match="numbers are drawn that were drawn before"):
            shardinit.capture.torch(twice(4, 8), seed=seed)
    with pytest.raises(shardinit.CaptureError, match="numbers are drawn that were drawn before"):
        shardinit.capture.torch(after(back_and_forth))


@pytest.mark.parametrize("draw", [lambda: np.random.default_rng().random(), lambda: np.random.RandomState().rand(),
                                  lambda: __import__("random").SystemRandom().random(),
                                  lambda: __import__("random").Random().random()])
def test_capture_warns_about_entropy_of_the_system(draw):
    with pytest.warns(CaptureWarning, match="drew from `os.urandom`, which no seed of the spec decides"):
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), draw())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), np.random.default_rng(3).random())))
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), np.random.RandomState(123).rand())))
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), len(__import__("tempfile").mktemp()))))


def test_internal_capture_error_is_reported_as_a_fault(monkeypatch, tmp_path, capsys):
    """An error inside shardinit names the user's line and has the exit status of a fault."""
    from shardinit.capture import _capture, _command

    def fails(*_):
        raise KeyError("odd")

    monkeypatch.setattr(_capture, "tensor_of", fails)
    with pytest.raises(shardinit.CaptureError,
                       match="KeyError at .*odd.*: this is a fault of shardinit: report it") as caught:
        shardinit.capture.torch(lambda: holder(a=torch.ones(3)))
    assert caught.value.is_fault and __file__ in str(caught.value)
    assert _command.main(["torch", "torch.nn:Linear", "--args", "[2, 3]"]) == 70
    assert "this is a fault of shardinit" in capsys.readouterr().err
    monkeypatch.setattr(_capture, "finish", fails)
    with pytest.raises(shardinit.CaptureError, match="this is a fault of shardinit"):
        shardinit.capture.torch(nn.Module)


def test_capture_leaves_no_patched_functions():
    names = ("orthogonal_", "sparse_", "_no_grad_trunc_normal_")
    functions = [getattr(nn.init, name) for name in names]
    table = [function.__code__ for function in functions]
    methods = (torch.Tensor.__deepcopy__, torch.Tensor.numpy, nn.Module._apply, torch.utils.swap_tensors)
    kept = {}

    def imports():  # Transformers keeps PyTorch's functions in such a table when it is imported.
        kept.update({name: getattr(nn.init, name) for name in names})
        cached_table(7)
        return nn.Linear(2, 2)

    torch.manual_seed(11)
    state = torch.get_rng_state()
    shardinit.capture.torch(imports)
    assert torch.equal(state, torch.get_rng_state()) and torch.initial_seed() == 11
    assert [function.__code__ for function in functions] == table
    assert methods == (torch.Tensor.__deepcopy__, torch.Tensor.numpy, nn.Module._apply, torch.utils.swap_tensors)
    assert type(cached_table(7)) is torch.Tensor and torch.arange(3.0).numpy()[2] == 2
    weight = kept["orthogonal_"](torch.empty(4, 4))
    torch.testing.assert_close(weight @ weight.T, torch.eye(4))


def test_capture_rejects_tensors_of_an_earlier_capture():
    shardinit.capture.torch(keeps)
    with pytest.raises(shardinit.CaptureError, match="a tensor of another capture, which something keeps, is used"):
        shardinit.capture.torch(keeps)
    KEPT.clear()
