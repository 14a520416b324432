"""Several processes of one deployment, hurt at random: what that does to answers, state and pace."""
