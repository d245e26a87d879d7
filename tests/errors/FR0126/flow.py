from functools import partial

from flowrl.spec import FlowBuilder


def make_reward(target):
    def reward(response):
        return [float(text == target) for text in response]

    return reward


flow = FlowBuilder("demo")
flow.reward("reward", make_reward("4"))
flow.reward("length", lambda response: [len(text) for text in response])
flow.reward("other", partial(make_reward, "4"))
flow.spec()
