"""Clients' news: held back until released, and none for ever."""

from __future__ import annotations

import asyncio

from gateway.give_way import GiveWay

WAIT_S = 10.0


def test_news_is_held_until_it_is_released() -> None:
    async def run() -> None:
        give_way, first, second = GiveWay(), asyncio.Event(), asyncio.Event()
        give_way.hold(first)
        give_way.hold(second)
        assert not first.is_set()
        give_way.release(first)
        assert first.is_set() and not second.is_set()

    asyncio.run(run())


def test_what_nobody_releases_comes_by_itself_every_time() -> None:
    async def run() -> None:
        give_way = GiveWay()
        for _ in range(3):
            news = [asyncio.Event() for _ in range(4)]
            for each in news:
                give_way.hold(each)
            await asyncio.wait_for(asyncio.gather(*(each.wait() for each in news)), WAIT_S)

    asyncio.run(run())


def test_a_release_of_what_was_not_held_is_no_news() -> None:
    news = asyncio.Event()
    GiveWay().release(news)
    assert not news.is_set()
