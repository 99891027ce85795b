"""What looks back at nights: how a run stands, its report, comparisons, evaluation with late labels, replay."""
