// Draws the API's schema with the vendored Swagger UI.
document.addEventListener("DOMContentLoaded", () => {
  window.SwaggerUIBundle({
    url: "/openapi.json", dom_id: "#swagger", deepLinking: false, validatorUrl: null,
    defaultModelsExpandDepth: 0, syntaxHighlight: false,
  });
});
