"""Signing in with OpenID Connect: who a provider of identities says that somebody is.

provider    the provider's documents and keys, fetched within limits
verifier    ID tokens, access tokens and logout tokens, checked by its keys
admission   who may sign in and as what: a pure function of claims and configuration
flow        one browser on its way to the provider and back
sign_in     `SignIn`, which the HTTP edge asks
"""
