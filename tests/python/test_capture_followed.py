"""Constructors do more than call functions of torch.nn.init: copies, views, memory of NumPy, PyTorch's
generator. All of it is in the captured spec, as the very constructor shows, or refused with its reason."""

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
    """A module of these."""
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
    """A layer that is copied and then changed, and what is drawn behind it."""

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
    """A layer whose place in the stream `draw` decides."""

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
    "to_empty": emptied,
    "skip_init": skipped,
    "half and float": lambda: nn.Sequential(nn.Linear(3, 4)).half().float(),
    "in-place views, out=, the generator by name": turned_in_place,
    "an orthogonal kernel": orthogonal_kernel,
    "cached tensors": lambda: holder(a=cached_table(5)),
}


@like_torch_cpu()
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_constructors_do_is_followed(name, engine):
    verified = shardinit.capture.torch(FOLLOWED[name], engine=engine, seed=SEED).verify()
    assert verified.good, verified.table()
    if engine == "torch_cpu" and "orthogonal" not in name:
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
    "the generator's seed": (lambda: holder(a=torch.full((3,), torch.default_generator.initial_seed())), "asks for the seed"),
    "the state": (lambda: holder(a=torch.get_rng_state().float()), "the state of PyTorch's generator is used as numbers"),
    "the state as a buffer": (lambda: holder(a=torch.get_rng_state()), "the state of PyTorch's generator is used"),
    "numbers that are caught": (swallows, "asks for the value of random numbers"),
    "NumPy looks at numbers": (numpy_of_random, "`numpy` asks for the value of random numbers"),
    "NumPy shares numbers": (random_in_numpy, "random numbers are written to memory that NumPy shares"),
    "another sign": (signed_otherwise, "a view of memory with another sign"),
    "on meta": (lambda: nn.Linear(3, 4, device="meta"), "it is on the device `meta`, where nothing has values"),
    "lazy modules": (lambda: nn.LazyConv1d(4, 3), "has no shape before the model has seen an input"),
    "another device": (lambda: holder(a=torch.randn(3, device="cuda").cpu()), "the device `cuda"),
    "a generator of its own": (lambda: holder(a=torch.randn(3, generator=torch.Generator())), "a generator of its own"),
}
AT_THE_END = {"on meta", "another sign", "draws of a thread", "the state as a buffer"}
FOLLOWED_BY_PHILOX = {"manual_seed", "default_generator", "set_state"}  # Distributions do not change.


def elsewhere():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    return generator.get_state()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_with_its_reason(name, engine):
    make, words = REFUSED[name]
    if engine == "philox4x32" and name in FOLLOWED_BY_PHILOX:
        assert shardinit.capture.torch(make, engine=engine, seed=SEED).verify().good
        return
    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(make, engine=engine, seed=SEED)
    assert words in str(caught.value)
    assert __file__ in str(caught.value) or name in AT_THE_END


def twice(*sizes):
    """Layers of these sizes, each drawn from where the stream begins."""

    def make():
        layers = []
        for size in sizes:
            manual_seed(SEED)
            layers.append(nn.Linear(4, size))
        return nn.Sequential(*layers)

    return make


@like_torch_cpu()
def test_numbers_that_are_drawn_again_are_not_said_to_be_new_ones():
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
def test_what_the_system_gives_has_a_warning(draw):
    with pytest.warns(CaptureWarning, match="drew from `os.urandom`, which no seed of the spec decides"):
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), draw())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), np.random.default_rng(3).random())))
        shardinit.capture.torch(lambda: holder(a=torch.full((3,), len(__import__("tempfile").mktemp()))))


def test_nothing_stays_behind():
    names = ("orthogonal_", "sparse_", "_no_grad_trunc_normal_")
    functions = [getattr(nn.init, name) for name in names]
    table = [function.__code__ for function in functions]
    methods = (torch.Tensor.__deepcopy__, torch.Tensor.numpy, nn.Module._apply, torch.utils.swap_tensors)
    kept = {}

    def imports():  # As Transformers keeps PyTorch's functions in a table, when it is imported.
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


def test_tensors_of_another_capture_are_refused():
    shardinit.capture.torch(keeps)
    with pytest.raises(shardinit.CaptureError, match="a tensor of another capture, which something keeps, is used"):
        shardinit.capture.torch(keeps)
    KEPT.clear()
