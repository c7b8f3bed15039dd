"""Reading what is shared once changes no log-likelihood, whatever the architecture and however the rows are cut."""

import pytest
import torch
from transformers import DynamicCache

from analysis.hallucination.shared_contexts import SharedContexts, can_share, families
from tests.tiny import ARCHITECTURES, tiny_model, with_adapter

LENGTH = 64  # no text here is longer


def plain(model, context, continuation):
    """Log-likelihood and greediness from one pass over everything."""
    with torch.no_grad():
        logs = model(torch.tensor([[*context, *continuation]])).logits.double().log_softmax(-1)[0, len(context) - 1 : -1]
    wanted = torch.tensor(continuation)
    return float(logs.gather(1, wanted[:, None]).sum()), bool((logs.argmax(-1) == wanted).all())


def some_requests(seed=0):
    """Two families of contexts with different questions of two lengths, several choices each, and contexts on their own."""
    random = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(3, 60, (count,), generator=random).tolist()

    requests = []
    for example in (tokens(20), tokens(24)):
        for length in (3, 3, 3, 5, 1):
            context = example + tokens(length)
            choices = [tokens(size) for size in (1, 1, 2, 4)]
            requests += [(context, choice) for choice in [*choices, choices[3][:2], [*choices[2][:1], 9]]]
    requests += [(context, tokens(2)) for context in [tokens(30)] for _ in range(4)]
    return [*requests, (tokens(12), tokens(3)), (tokens(1), tokens(2))]


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"lfm2"}))
def test_every_architecture_gives_the_same_log_likelihoods(architecture):
    attention = "eager" if architecture == "gemma2" else "sdpa"  # Gemma 2 has no other
    model, requests = tiny_model(architecture, attention), some_requests()
    assert can_share(model, LENGTH)
    found = SharedContexts(model, rows=8).answer(requests)
    assert set(found) == set(range(len(requests) - 2)), "all but the two contexts that share nothing"
    for place, (likelihood, greedy) in found.items():
        expected, is_greedy = plain(model, *requests[place])
        assert likelihood == pytest.approx(expected, abs=2e-5, rel=2e-6) and greedy == is_greedy


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3", "mistral", "lfm2"])
def test_a_cache_that_forgets_or_holds_something_else_is_not_used(architecture):
    settings = {} if architecture == "lfm2" else {"sliding_window": LENGTH}
    assert not can_share(tiny_model(architecture, **settings), LENGTH)


def test_rows_and_adapter_do_not_matter():
    model, requests = with_adapter(tiny_model()), some_requests(1)
    found = [SharedContexts(model, rows).answer(requests) for rows in (1, 3, 64)]
    assert set(found[0]) == set(found[1]) == set(found[2])
    for place, (likelihood, _) in found[0].items():
        assert likelihood == pytest.approx(plain(model, *requests[place])[0], abs=2e-5)
        assert likelihood == pytest.approx(found[1][place][0], abs=1e-5) == pytest.approx(found[2][place][0], abs=1e-5)


def test_a_greedy_continuation_is_known_as_one():
    model, context = tiny_model(), some_requests()[0][0]
    with torch.no_grad():
        best = int(model(torch.tensor([context])).logits[0, -1].argmax())
    others = [(best + step) % 60 for step in range(1, 6)]
    asked = [(context, [token, *rest]) for token in (best, *others) for rest in ([], [7], [7, 8])]
    found = SharedContexts(model, rows=4).answer(asked)
    assert found[0][1] and not found[3][1]
    assert all(found[place][1] == plain(model, *asked[place])[1] for place in found)


def test_far_fewer_tokens_are_read():
    model, requests, read = tiny_model(), some_requests(), []
    hook = model.model.embed_tokens.register_forward_hook(lambda _module, given, _out: read.append(given[0].numel()))
    SharedContexts(model, rows=16).answer(requests)
    hook.remove()
    assert sum(read) < 0.25 * sum(len(context) + len(continuation) for context, continuation in requests)


def test_what_is_shared_is_not_changed_by_being_used():
    model = tiny_model()
    reader = SharedContexts(model, rows=4)
    cache = reader.read(None, [[5, 6, 7, 8]])[1]
    before = [layer.keys.clone() for layer in cache.layers]
    reader.read(reader.copies(cache, [0, 0]), [[9], [10]])
    assert isinstance(cache, DynamicCache) and all(
        torch.equal(a, layer.keys) for a, layer in zip(before, cache.layers, strict=True)
    )


def test_families_keep_every_context_once_and_a_token_to_predict_from():
    contexts = list(dict.fromkeys(tuple(context) for context, _ in some_requests()))
    contexts += [contexts[0][:18], (*contexts[0][:18], 1)]
    found = list(families(contexts))
    assert sorted(one for _, family in found for one in family) == sorted(contexts)
    for prefix, family in found:
        assert len({one[:prefix] for one in family}) == 1 and all(len(one) > prefix for one in family)
    assert sum(prefix >= 16 for prefix, _ in found) == 2


def test_a_short_beginning_is_not_worth_it():
    assert [prefix for prefix, _ in families([(1, 2, 3, 4), (1, 2, 3, 5)])] == [0]
    assert list(families([])) == []
    pair = [(*range(20), 90), (*range(20), 91)]
    assert [prefix for prefix, _ in families(pair)] == [0], "one reading of 20 tokens saved"
    assert [prefix for prefix, _ in families([*pair, (*range(20), 92), (*range(20), 93), (*range(20), 94)])] == [20]
