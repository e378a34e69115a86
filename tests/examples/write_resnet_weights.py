"""write_resnet_weights.py OUT: torchvision's ResNet-18 with random weights and statistics, images, and
its logits in f64 and f32, in one file of torch.save."""
import sys

import torch
import torchvision

torch.manual_seed(1)
model = torchvision.models.resnet18(weights=None).eval()
with torch.no_grad():
    for name, buffer in model.named_buffers():  # statistics as after training
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.2)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    images = torch.randn(4, 3, 224, 224)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    f32 = model(images)
    f64 = model.double()(images.double())
torch.save({"state_dict": model.float().state_dict(), "images": images, "f32": f32, "f64": f64}, sys.argv[1])
assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
