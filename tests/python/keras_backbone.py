"""KerasHub's own Llama3Backbone, and its variables by the paths of the layout `kerashub`."""

import re
import tempfile

import h5py


def Llama(layers, d, ff, heads, kv_heads, vocab, dtype):
    import keras_hub

    return keras_hub.models.Llama3Backbone(
        vocabulary_size=vocab, num_layers=layers, num_query_heads=heads, hidden_dim=d, intermediate_dim=ff,
        num_key_value_heads=kv_heads, dtype=dtype)


def Variables(model):
    """What Keras saves, as words, under the paths of the layout `kerashub`."""
    found = {}

    def Visit(name, item):
        if isinstance(item, h5py.Dataset):
            path = re.sub(r"(decoder)_?(\d*)/", lambda m: f"{m[1]}/{m[2] or 0}/", name)
            found[path.replace("/", ".")] = item[...].view("<u2")

    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(folder + "/model.weights.h5")
        with h5py.File(folder + "/model.weights.h5") as file:
            file.visititems(Visit)
    return found
