"""Federated surrogate optimisation: clients descend upper bounds of their objectives that touch them where they are.

Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS 2021, section 4 (algorithms 10
and 11 of Marfoq's thesis). With u shared by all clients and v_t private to client t,

    minimise    f(u, v_1..v_T)  =  sum_t omega_t f_t(u, v_t)

    each round, each client:    g_t  <-  a surrogate of f_t near (u, v_t)
                                v_t  <-  argmin_v g_t(u, v)
                                u_t  <-  some gradient steps on g_t(., v_t)
    server:                     u    <-  sum_t omega_t u_t            or, among peers, u_t <- sum_s W[t, s] u_s

A partial first-order surrogate g of f near (u0, v0): g >= f; the difference g - f is smooth in u, and it and its
gradient in u vanish at (u0, v0); g(u, v0) - g(u, v) = d(v0, v) >= 0 for the v that minimises it. Here as plain loops
over whole datasets, for whoever has another problem of that kind; FedEM, which is one, is an algorithm of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad

from turnout.core.random import FloatArray
from turnout.local.mixture import MixtureTask, mixture_loss, responsibilities

Samples = tuple[Tensor, Tensor]  # all inputs and targets of a client
Surrogate = Callable[[Tensor, Tensor], Tensor]  # of (u, v)


class SurrogateProblem:
    """What one client minimises, in its shared and its private parameters."""

    def objective(self, shared: Tensor, private: Tensor, data: Samples) -> Tensor:
        """f_t(u, v)"""
        raise NotImplementedError

    def surrogate(self, shared: Tensor, private: Tensor, data: Samples) -> Surrogate:
        """g_t near (u, v)."""
        raise NotImplementedError

    def minimise_private(self, shared: Tensor, private: Tensor, data: Samples) -> Tensor:
        """The v that minimises g_t(u, v) for the surrogate near (u, v)."""
        raise NotImplementedError

    def divergence(self, private: Tensor, best: Tensor) -> Tensor:
        """d(v, best) = g_t(u, v) - g_t(u, best), where best is the minimiser."""
        raise NotImplementedError


class MixtureProblem(SurrogateProblem):
    """FedEM's: u are the components, v the weights pi; constants (log p(x), c) are left out of both f and g.

    f = -mean_i log sum_m pi_m exp(-l_im)
    g = mean_i sum_m q_im (l_im - log pi_m + log q_im)        with the q of (u0, pi0);    d(pi, best) = KL(best, pi)
    """

    def __init__(self, task: MixtureTask) -> None:
        self.task = task

    def objective(self, shared: Tensor, private: Tensor, data: Samples) -> Tensor:
        return mixture_loss(self.task.component_losses(shared, *data), private).mean()

    def surrogate(self, shared: Tensor, private: Tensor, data: Samples) -> Surrogate:
        q = responsibilities(self.task.component_losses(shared, *data), private)

        def bound(shared: Tensor, private: Tensor) -> Tensor:
            losses = self.task.component_losses(shared, *data)
            return (q * losses - torch.xlogy(q, private) + torch.xlogy(q, q)).sum(-1).mean()

        return bound

    def minimise_private(self, shared: Tensor, private: Tensor, data: Samples) -> Tensor:
        return responsibilities(self.task.component_losses(shared, *data), private).mean(0)

    def divergence(self, private: Tensor, best: Tensor) -> Tensor:
        return (torch.xlogy(best, best) - torch.xlogy(best, private)).sum()


def client_round(
    problem: SurrogateProblem, shared: Tensor, private: Tensor, data: Samples, steps: int, lr: float
) -> tuple[Tensor, Tensor]:
    """u_t and v_t after one client's work."""
    bound = problem.surrogate(shared, private, data)
    private = problem.minimise_private(shared, private, data)
    for _ in range(steps):
        shared = shared - lr * grad(bound)(shared, private)
    return shared, private


def server_round(
    problem: SurrogateProblem,
    shared: Tensor,
    private: Sequence[Tensor],
    data: Sequence[Samples],
    importance: FloatArray,
    steps: int,
    lr: float,
) -> tuple[Tensor, list[Tensor]]:
    """u `[P]` and all v_t after one round with a server."""
    done = [client_round(problem, shared, v, mine, steps, lr) for v, mine in zip(private, data, strict=True)]
    rows = torch.stack([u for u, _ in done])
    return torch.as_tensor(importance).to(rows) @ rows, [v for _, v in done]


def peers_round(
    problem: SurrogateProblem,
    shared: Tensor,
    private: Sequence[Tensor],
    data: Sequence[Samples],
    importance: FloatArray,
    mixing: FloatArray,
    steps: int,
    lr: float,
) -> tuple[Tensor, list[Tensor]]:
    """All u_t `[T, P]` and v_t after one round among peers. Gradients are scaled by T omega_t: the learning rate then
    means the same as with a server."""
    scale = len(data) * importance
    done = [
        client_round(problem, u, v, mine, steps, lr * float(own))
        for u, v, mine, own in zip(shared, private, data, scale, strict=True)
    ]
    rows = torch.stack([u for u, _ in done])
    return torch.as_tensor(mixing).to(rows) @ rows, [v for _, v in done]
