"""`forerun bench`: is speculation worth it here, with which draft, at which load?

It sends the same requests to the same target with several drafters and draft lengths, and with none (`runner`), keeps
what each request saw (`records`), sums it up (`summary`), says what to do (`advice`) and draws it (`report`). It is a
client: it loads no model and imports no service. Whoever starts services hands in a `runner.Launch`.
"""
