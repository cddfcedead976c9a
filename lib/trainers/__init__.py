"""The phases: SFT, GRPO and DPO, each from params to a trainer that is ready to start."""
