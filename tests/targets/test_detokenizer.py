"""A tokenizer without its model."""

import subprocess
import sys

import pytest

from detharness.errors import CheckpointError
from detharness.targets.detokenizer import Detokenizer


def test_a_folders_tokenizer_writes_what_the_engine_writes(tiny_folder):
    from detharness.checkpoints.tokenizer import CrossCheck, load_tokenizer_folder

    folder = tiny_folder("llama")
    engine = load_tokenizer_folder(folder, check=CrossCheck.SKIP)
    ids = engine.encode("one two, three!")
    detokenizer = Detokenizer(str(folder))
    assert detokenizer.digest == engine.digest
    assert detokenizer.decode(ids) == engine.decode(ids) != ""


def test_the_built_in_tokenizer_loads_without_torch():
    script = (
        "import sys\n"
        "from detharness.targets.detokenizer import Detokenizer\n"
        "print(Detokenizer('smollm2-135m').decode((19556, 905)))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "Hello world\n"


def test_a_file_that_holds_no_tokenizer_is_refused(tmp_path):
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(CheckpointError, match="no GGUF file that can be read"):
        Detokenizer(str(damaged))
    with pytest.raises(CheckpointError, match="there is no model at"):
        Detokenizer(str(tmp_path / "nothing here"))
