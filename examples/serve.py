"""An HTTP service around one exported graph: image in; class, probability, set and drift out.

    atta export classifier -o classifier.onnx --pixels uint8
    python examples/serve.py classifier.onnx
    curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict
    curl http://127.0.0.1:8000/drift

ONNX Runtime runs the graph. The file also contains the preprocessing, the class names and what
conformal sets and drift need. It needs atta[serve,onnx]. Only this machine can connect; for
others, put a proxy with authentication in front of it.
"""

import sys

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from atta.classifier.predict import open_predictor
from atta.classifier.serve import SENTENCES, Explainer, sent


def service(path: str, coverage: float = 0.95) -> Starlette:
    """Return an ASGI application; in FastAPI: app.mount("/classifier", service(path))."""
    explain = Explainer(open_predictor(path), coverage=coverage)
    at_once = CapacityLimiter(2)  # images in memory: a graph uses all cores by itself

    def answer(data: bytes) -> dict:
        said, drift = explain(data), explain.drift()
        return {
            "class": said["class"],
            "probability": said["confidence"],  # that the class is right
            "set": said["set"],  # contains the true class this often; the likeliest first
            "ood": said["ood"],  # 0.99: more unusual than 99 % of the validation images
            "drifted": drift.drifted if drift else None,  # the last 500 images, from 32 on
        }

    async def predict(request: Request) -> JSONResponse:
        data = await sent(request, largest=10_000_000)  # larger requests are refused
        return JSONResponse(await to_thread.run_sync(answer, data, limiter=at_once))

    async def drift(request: Request) -> JSONResponse:
        found = explain.drift()
        return JSONResponse(found.json() if found else None)

    routes = [Route("/predict", predict, methods=["POST"]), Route("/drift", drift)]
    return Starlette(routes=routes, exception_handlers=SENTENCES)


if __name__ == "__main__":
    uvicorn.run(service(sys.argv[1]), host="127.0.0.1", port=8000)
