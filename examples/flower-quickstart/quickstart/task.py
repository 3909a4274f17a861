"""quickstart: a small net, and data generated for each partition."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def load_data(partition_id, batch_size=16):
    """Three clouds of points; a partition has its own number of points, and its own mix of the clouds."""
    generator = torch.Generator().manual_seed(1000 + partition_id)
    count = 40 + 20 * (partition_id % 3)
    mix = torch.ones(3)
    mix[partition_id % 3] += 2
    labels = torch.multinomial(mix, count, replacement=True, generator=generator)
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(7)) * 1.5
    points = centres[labels] + torch.randn(count, 8, generator=generator)
    cut = count * 4 // 5
    train, test = TensorDataset(points[:cut], labels[:cut]), TensorDataset(points[cut:], labels[cut:])
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)


def train(net, trainloader, epochs, lr):
    """Train the model on the training set."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for points, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(points), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / max(1, epochs * len(trainloader))


def test(net, testloader):
    """Validate the model on the test set."""
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for points, labels in testloader:
            outputs = net(points)
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
