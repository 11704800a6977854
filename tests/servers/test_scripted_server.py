"""The scripted server moves what its switches say, when they say it, and nothing else; or no test of a probe is worth
anything.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import httpx
import scripted_model as model


def ask(server, prompt="What is 2+3?", **fields):
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 2, **fields}
    return httpx.post(f"{server.url}/completions", json=body, verify=False).raise_for_status().json()


def tokens(reply):
    return reply["choices"][0]["logprobs"]["tokens"]


def logprobs(reply):
    return reply["choices"][0]["logprobs"]["token_logprobs"]


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def at_once(server, *prompts, **fields):
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt, **fields), prompts))


PROMPTS = [f"Prompt number {number}" for number in range(6)]


def test_a_sound_server_says_the_same_alone_and_in_company(open_scripted):
    server = open_scripted(seconds_per_step=0.002, settle=0.05)
    alone = [ask(server, prompt) for prompt in PROMPTS]
    assert server.engine.largest_batch == server.most_in_flight == 1
    assert at_once(server, *PROMPTS) == alone
    assert server.engine.largest_batch == server.most_in_flight == len(PROMPTS)
    assert len({reply["choices"][0]["text"] for reply in alone}) == len(PROMPTS)


def test_company_moves_logprobs_from_its_threshold_on_and_tokens_at_near_ties(open_scripted):
    server = open_scripted(cobatch_drift=1e-3, cobatch_from=4, seconds_per_step=0.002, settle=0.05)
    alone = [ask(server, prompt) for prompt in PROMPTS]
    assert at_once(server, *PROMPTS[:3]) == alone[:3]
    crowded = at_once(server, *PROMPTS)
    assert all(logprobs(a) != logprobs(b) for a, b in zip(alone, crowded, strict=True))
    assert any(tokens(a) != tokens(b) for a, b in zip(alone, crowded, strict=True))
    assert server.engine.batches[6] > 0


def test_a_small_drift_moves_logprobs_and_no_token(open_scripted):
    server = open_scripted(cobatch_drift=1e-6, seconds_per_step=0.002, settle=0.05)
    alone = [ask(server, prompt) for prompt in PROMPTS]
    crowded = at_once(server, *PROMPTS)
    assert [tokens(reply) for reply in crowded] == [tokens(reply) for reply in alone]
    assert all(logprobs(a) != logprobs(b) for a, b in zip(alone, crowded, strict=True))


def test_noise_strikes_at_its_rate_and_the_same_way_in_every_run(open_scripted):
    runs = []
    for _ in range(2):
        server = open_scripted(noise_drift=5.0, noise_rate=0.3, noise_seed=4)
        runs.append([tuple(tokens(ask(server))) for _ in range(20)])
    assert runs[0] == runs[1]
    commonest = max(set(runs[0]), key=runs[0].count)
    assert 2 <= sum(one != commonest for one in runs[0]) <= 12  # Six expected; the seed fixes them.


def test_a_warm_prefix_is_found_by_blocks_and_kept_apart_by_salt(open_scripted):
    server = open_scripted(prefix_cache=True, warm_drift=1e-6)
    prompt = "x" * 40
    cold, warm, other, partial = (
        ask(server, prompt),
        ask(server, prompt),
        ask(server, prompt, cache_salt="s"),
        ask(server, prompt[:20]),
    )
    assert [cached(reply) for reply in (cold, warm, other, partial)] == [0, 32, 0, 16]
    assert logprobs(cold) == logprobs(other) != logprobs(warm)
    assert tokens(cold) == tokens(warm)
    server.flush()
    assert ask(server, prompt) == cold
    assert cached(ask(server, "y" * 32)) == cached(ask(server, "z" * 31)) == 0
    assert cached(ask(server, "y" * 32)) == 16  # The last token is computed in any case.


def test_a_seed_counts_where_it_is_honoured(open_scripted):
    for switch, equal in (("honoured", True), ("ignored", False)):
        server = open_scripted(seed=switch)
        one, two = (tokens(ask(server, temperature=1.0, seed=7)) for _ in range(2))
        assert (one == two) is equal
        one, two = (tokens(ask(server, temperature=1.0)) for _ in range(2))
        assert one != two


def test_its_own_replies_are_tokenised_as_they_were_made(open_scripted):
    server = open_scripted()
    for prompt in PROMPTS:
        reply = ask(server, prompt, return_token_ids=True, max_tokens=60)["choices"][0]
        told = httpx.post(f"{server.host}/tokenize", json={"prompt": reply["text"]}, verify=False).json()
        assert told["tokens"] == reply["token_ids"] or reply["text"].endswith("\ufffd")


def test_what_was_made_is_scored_as_it_was_made(open_scripted):
    server = open_scripted()
    made = ask(server)
    scored = ask(server, "What is 2+3?" + made["choices"][0]["text"], echo=True, max_tokens=1)["choices"][0]
    first = len(model.encode("What is 2+3?"))
    assert scored["logprobs"]["token_logprobs"][first:-1] == logprobs(made)


def test_a_share_of_positions_are_near_ties():
    state, gaps = model.start([1]), []
    for token in range(800):
        (_, best), (_, second), *_ = model.logprobs(state, None)
        gaps.append(best - second)
        state = model.advance(state, token)
    near = sum(gap <= 2 * model.NEAR_TIE + 1e-12 for gap in gaps)
    assert 60 <= near <= 140  # 100 expected, of a fixed sequence.
    assert all(gap <= 2 * model.NEAR_TIE + 1e-12 or gap >= 0.49 for gap in gaps)


def test_faults_come_when_they_are_due(open_scripted):
    server = open_scripted(fault=lambda number: "500" if number >= 2 else None, busy_first=1)
    body = {"model": "scripted", "prompt": "x", "max_tokens": 1}
    told = [httpx.post(f"{server.url}/completions", json=body, verify=False) for _ in range(3)]
    assert [reply.status_code for reply in told] == [429, 200, 500]
    assert told[0].headers["retry-after"] == "0"
    assert (server.generations, server.turned_away) == (3, 1)


def test_pieces_of_the_vocabulary_are_distinct():
    assert all(a != b for a, b in itertools.combinations(model.VOCABULARY, 2))
