"""The layers of KerasHub's Llama3Backbone that have variables, under its names: KerasHub
itself wants TensorFlow. Paths and shapes are those that keras_hub 0.32.0 saves."""

import re
import tempfile

import h5py


def Llama(keras, layers, d, ff, heads, kv_heads, vocab):
    def Dense(equation, shape):
        return keras.layers.EinsumDense(equation, shape, kernel_initializer="zeros")

    class LlamaLayerNorm(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[-1:], name="scale")

        def call(self, x):
            return x * self.scale

    class Attention(keras.layers.Layer):
        def build(self, shape):
            self._query_dense = Dense("bqm,muh->bquh", (None, heads, d // heads))
            self._key_dense = Dense("bkm,mvh->bkvh", (None, kv_heads, d // heads))
            self._value_dense = Dense("bkm,mvh->bkvh", (None, kv_heads, d // heads))
            self._output_dense = Dense("bquh,uhm->bqm", (None, d))
            for layer in [self._query_dense, self._key_dense, self._value_dense]:
                layer.build(shape)
            self._output_dense.build((*shape[:2], heads, d // heads))

        def call(self, x):
            return self._output_dense(self._query_dense(x))

    class LlamaTransformerDecoder(keras.layers.Layer):
        def build(self, shape):
            self._self_attention_layer = Attention()
            self._self_attention_layernorm = LlamaLayerNorm()
            self._feedforward_gate_dense = keras.layers.Dense(ff, use_bias=False, kernel_initializer="zeros")
            self._feedforward_intermediate_dense = keras.layers.Dense(ff, use_bias=False, kernel_initializer="zeros")
            self._feedforward_output_dense = keras.layers.Dense(d, use_bias=False, kernel_initializer="zeros")
            self._feedforward_layernorm = LlamaLayerNorm()

        def call(self, x):
            x = self._self_attention_layer(self._self_attention_layernorm(x))
            x = self._feedforward_layernorm(x)
            return self._feedforward_output_dense(
                self._feedforward_gate_dense(x) * self._feedforward_intermediate_dense(x))

    keras.config.set_dtype_policy("bfloat16")
    inputs = keras.Input((None,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(vocab, d, tie_weights=False, embeddings_initializer="zeros")
    x = table(inputs)
    for _ in range(layers):
        x = LlamaTransformerDecoder()(x)
    return keras.Model(inputs, table(LlamaLayerNorm()(x), reverse=True))


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
