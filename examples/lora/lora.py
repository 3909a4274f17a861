"""Fine-tune a causal language model by low-rank adapters, which are all that clients train and send."""

import copy
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import turnout

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=64, n_layer=2, n_head=4))
texts = (torch.randint(0, 32, (400, 1)) + torch.arange(17) * torch.randint(1, 3, (400, 1))) % 32  # count by 1 or 2

model = get_peft_model(
    copy.deepcopy(base), LoraConfig(r=8, target_modules=["c_attn", "c_proj", "c_fc"], lora_dropout=0.05)
)
data = turnout.Dataset("counting", {"input_ids": texts[:, :-1]}, texts[:, 1:], 32)
people = turnout.Population.of(data, clients=10, partition="iid", test="split")
local = turnout.LocalSGD(0.01, epochs=2, batch_size=8, optimiser="adam")
result = turnout.simulate(turnout.Task(model, seed=1), people, turnout.FedAvg(local), rounds=6)
print(f"{len(result.model)} numbers trained and sent, of {sum(own.numel() for own in model.parameters())}")
print(f"accuracy of the next symbol {result.measures['test_accuracy']:.2f}")

folder = sys.argv[1] if len(sys.argv) > 1 else "adapter"
model.load_state_dict(result.state_dict())
model.save_pretrained(folder)
adapted = PeftModel.from_pretrained(base, folder)  # as anybody would who has the base
some = {"input_ids": texts[:4, :-1]}
assert torch.equal(adapted.eval()(**some).logits, model.eval()(**some).logits)
