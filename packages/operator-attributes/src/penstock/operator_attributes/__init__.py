"""Job graphs, blocking edges and stages: plan bounded work before the live stage."""
