"""`penstock doctor`: what is wrong with a set-up, and the cure."""
