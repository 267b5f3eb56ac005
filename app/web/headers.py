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
