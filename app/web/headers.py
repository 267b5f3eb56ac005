"""Security headers: one strict policy for every answer. Nothing inline, nothing from elsewhere."""

from __future__ import annotations

from secure import (
    ContentSecurityPolicy,
    CrossOriginOpenerPolicy,
    CrossOriginResourcePolicy,
    PermissionsPolicy,
    ReferrerPolicy,
    Secure,
    XContentTypeOptions,
    XFrameOptions,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# No upgrade-insecure-requests: people run this over plain HTTP on their own machine.
POLICY = (
    ContentSecurityPolicy()
    .default_src("'none'")
    .script_src("'self'")
    .style_src("'self'")
    .img_src("'self'", "data:", "blob:")
    .connect_src("'self'")
    .font_src("'self'")
    .form_action("'self'")
    .base_uri("'none'")
    .frame_ancestors("'none'")
)


def security_headers() -> Secure:
    """Return the headers that every answer carries."""
    return Secure(
        csp=POLICY,
        coop=CrossOriginOpenerPolicy().same_origin(),
        corp=CrossOriginResourcePolicy().same_origin(),
        permissions=PermissionsPolicy().camera("()").geolocation("()").microphone("()"),
        referrer=ReferrerPolicy().same_origin(),
        xcto=XContentTypeOptions().nosniff(),
        xfo=XFrameOptions().deny(),
    )


class SecurityHeaders:
    """Adds the headers to every answer.

    They are encoded once: the library's own middleware rebuilds them for every answer, which took
    as long as a small calculation.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.lines = [
            (name.lower().encode(), value.encode())
            for name, value in security_headers().headers.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, its answer's head extended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def extend(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.lines]
            await send(message)

        await self.app(scope, receive, extend)
