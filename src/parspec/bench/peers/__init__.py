"""Other engines under the same load as ours: each in a process of its own, one after the other."""

from parspec.bench.peers.files import gguf_files
from parspec.bench.peers.protocol import PeerAbsent, PeerPrompt, PeerRun, PeerSpec
from parspec.bench.peers.runner import PEERS, run_peer

__all__ = ["PEERS", "PeerAbsent", "PeerPrompt", "PeerRun", "PeerSpec", "gguf_files", "run_peer"]
