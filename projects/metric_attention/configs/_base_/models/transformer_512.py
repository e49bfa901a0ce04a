# The Transformer as printed (arXiv 2412.18288, Table 2): 512 wide, 8 heads,
# 6 + 6 layers, a perceptron of width 512 for the metric.
vocab_size = 8000
max_length = 256
model = dict(
    type='mmstepnet.TranslationTransformer',
    vocab_size=vocab_size,
    attention=dict(type='MetricAttention'),
    embed_dims=512,
    num_heads=8,
    num_layers=6,
    feedforward_dims=2048,
    dropout=0.1,
    max_length=max_length,
)
