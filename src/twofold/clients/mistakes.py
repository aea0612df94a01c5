"""What is wrong with clients, or had to be guessed about them."""

from __future__ import annotations

from twofold.errors import InputError

__all__ = ["ClientError", "ClientWarning"]


class ClientError(InputError):
    """Invalid client data; the message names the client, the field and the value.

    >>> import numpy as np
    >>> import twofold as tw
    >>> try:
    ...     tw.Clients.from_list([([[1.0], [np.inf]], [0, 1])], names=["ann"])
    ... except tw.ClientError as mistake:
    ...     print(mistake)
    client 'ann': x at row 1, column 0 is inf, but every value must be finite
    """


class ClientWarning(UserWarning):
    """Something about a table had to be guessed; the message says how to state it explicitly.

    >>> issubclass(ClientWarning, UserWarning)
    True
    """
