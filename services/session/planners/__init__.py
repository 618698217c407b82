"""What stands in the model's place. Each planner answers a View with a Plan."""
