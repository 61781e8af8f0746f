"""Launch lines and configurations of training frameworks, written and read.

megatron(scenario)                      # a Launch: environment, program, flags, and what no flag says
read_megatron("--num-layers 32 …")      # an Imported: a scenario's values, assumptions, and what was not understood
read_hugging_face(json_text)            # the same for a model's config.json
torchtitan(scenario)                    # a Launch

launch_line     flags of a line or a shell script; a setting as flags, in both directions
scenario_file   the values of a scenario by path; its text
"""

from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.launch_line import Launch
from hybrid_des.interchange.frameworks.megatron import megatron, read_megatron
from hybrid_des.interchange.frameworks.scenario_file import Imported
from hybrid_des.interchange.frameworks.torchtitan import torchtitan

__all__ = ["Imported", "Launch", "megatron", "read_hugging_face", "read_megatron", "torchtitan"]
