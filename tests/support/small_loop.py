"""A loop that is simulated in a fraction of a second."""

TEXT = """\
name: small
cluster: {gpu: h100, nodes: 4}
model: {base: llama3.1-8b, written: pytorch}
parallel: {data: 16}
sharding: zero-3
batch: 64
rl:
  samples: 4
  updates: 4
  ahead: 0.5
  prompt: 100
  response: {kind: lognormal, mean: 300, sigma: 1, max: 2000}
  rollout: {nodes: 2-3, tensor: 4, concurrency: 32}
  sync: {time: 1 s}
  trainer: {time: 5 s}
steps: 3
"""
